/* A second profiler plugin behind the probe: NCCL has room for one. */
#ifndef NCCLMON_CHAIN_H
#define NCCLMON_CHAIN_H

#include "nccl_profiler.h"

struct chain_init {
	uint64_t hash;
	const char *name;
	int nodes, ranks, rank, interface;
	nccl_log log;
};

extern bool chained; /* NCCLMON_CHAIN_PLUGIN names a plugin, and it was loaded */

/* Ask the other plugin in. `context` and `mask` come with what the probe wants and leave with what NCCL is to be told. */
void chain_init(void **context, int *mask, const struct chain_init *init);

void *chain_start(void *context, uint64_t type, struct nccl_event_descr *descr);
void chain_stop(void *handle);
void chain_record(void *handle, int state, union nccl_state_args *args);
void chain_finalize(void *context);

/* plugin.c: the probe's own part of each call */
uint64_t own_start(void *context, uint64_t type, const struct nccl_event_descr *descr);
void own_stop(uint64_t handle);
void own_record(uint64_t handle, int state, const union nccl_state_args *args);
void own_finalize(void *context);

#endif
