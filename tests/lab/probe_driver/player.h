/* Plays NCCL's part towards a profiler plugin: loads it as NCCL does and makes the calls that NCCL makes, honouring the mask. */
#ifndef PLAYER_H
#define PLAYER_H

#include <stdbool.h>
#include <stdint.h>

#include "nccl_profiler.h"

struct player {
	void *library;
	int interface;
	const struct nccl_profiler_v4 *v4;
	const struct nccl_profiler_v5 *v5; /* and 6 */
	nccl_start_fn *start_fn;
	nccl_stop_fn *stop_fn;
	nccl_record_fn *record_fn;
	nccl_finalize_fn *finalize_fn;
	int mask; /* as the plugin set it, with the ancestors that NCCL adds */
};

/* Load the plugin at `path`; `interface` 4, 5 or 6, 0 = the newest it has. Ends the program if it cannot. */
void player_load(struct player *p, const char *path, int interface);

/* A communicator's context. */
void *player_init(struct player *p, uint64_t hash, const char *name, int nodes, int ranks, int rank);

/* An event's handle; NULL when the mask leaves the event out. */
void *player_start(const struct player *p, void *context, struct nccl_event_descr *descr);
void player_stop(const struct player *p, void *handle);
void player_state(const struct player *p, void *handle, int state, uint64_t argument);
void player_finalize(const struct player *p, void *context);

/* What happens at one ncclAllReduce or the like, up to the return of the call: from the group's start to its end. */
void *player_collective(const struct player *p, void *context, const struct nccl_coll *coll);
void *player_p2p(const struct player *p, void *context, const struct nccl_p2p *p2p);

void *player_proxy_op(const struct player *p, void *context, void *parent, struct nccl_proxy_op op);
void *player_step(const struct player *p, void *context, void *parent, int step);
void *player_kernel(const struct player *p, void *context, void *parent, uint8_t channel, uint64_t gpu_ns);
void player_kernel_stop(const struct player *p, void *handle, uint64_t gpu_ns);

#endif
