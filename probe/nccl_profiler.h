/* NCCL's profiler plugin interface, versions 4 (NCCL 2.27), 5 (2.28) and 6 (2.29 on; newer releases still accept it), as far as
 * the probe uses it: binary facts, written down for this project. The descriptors of all three have the same offsets; only the
 * width of `type` and the order of init's arguments differ. */
#ifndef NCCLMON_NCCL_PROFILER_H
#define NCCLMON_NCCL_PROFILER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum nccl_event {
	EVENT_GROUP = 1 << 0, EVENT_COLL = 1 << 1, EVENT_P2P = 1 << 2, EVENT_PROXY_OP = 1 << 3, EVENT_PROXY_STEP = 1 << 4,
	EVENT_KERNEL = 1 << 6, EVENT_NET_PLUGIN = 1 << 7, EVENT_GROUP_API = 1 << 8, EVENT_COLL_API = 1 << 9, EVENT_P2P_API = 1 << 10,
	EVENT_KERNEL_LAUNCH = 1 << 11
};

enum nccl_state {
	STATE_SEND_GPU_WAIT = 8, STATE_SEND_WAIT = 9, STATE_RECV_WAIT = 10, STATE_RECV_FLUSH_WAIT = 11, STATE_RECV_GPU_WAIT = 12,
	STATE_PROXY_OP_IN_PROGRESS = 19, STATE_SEND_PEER_WAIT = 20, STATE_KERNEL_STOP = 22
};

struct nccl_coll {
	uint64_t sequence;
	const char *function;
	const void *send_buffer;
	void *recv_buffer;
	size_t count;
	int root;
	const char *datatype;
	uint8_t channels;
	uint8_t warps;
	const char *algorithm;
	const char *protocol;
	void *parent_group; /* from version 5 on */
};

struct nccl_p2p {
	const char *function;
	void *buffer;
	const char *datatype;
	size_t count;
	int peer;
	uint8_t channels;
	void *parent_group; /* from version 5 on */
};

struct nccl_proxy_op {
	pid_t pid;
	uint8_t channel;
	int peer;
	int steps;
	int chunk;
	int is_send;
};

struct nccl_event_descr {
	uint64_t type; /* version 4: a single byte, the rest is undefined */
	void *parent;
	int rank;
	union {
		struct nccl_coll coll;
		struct nccl_p2p p2p;
		struct nccl_proxy_op proxy_op;
		struct { int step; } proxy_step;
		struct { uint8_t channel; uint64_t gpu_ns; } kernel;
	};
};

union nccl_state_args {
	struct { size_t bytes; } proxy_step;
	struct { uint64_t gpu_ns; } kernel;
};

typedef void (*nccl_log)(int level, unsigned long subsystems, const char *file, int line, const char *format, ...);

typedef int nccl_start_fn(void *context, void **handle, struct nccl_event_descr *descr);
typedef int nccl_stop_fn(void *handle);
typedef int nccl_record_fn(void *handle, int state, union nccl_state_args *args);
typedef int nccl_finalize_fn(void *context);

struct nccl_profiler_v4 {
	const char *name;
	int (*init)(void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks, int rank, nccl_log log);
	nccl_start_fn *start;
	nccl_stop_fn *stop;
	nccl_record_fn *record;
	nccl_finalize_fn *finalize;
};

struct nccl_profiler_v5 {
	const char *name;
	int (*init)(void **context, uint64_t hash, int *mask, const char *name, int nodes, int ranks, int rank, nccl_log log);
	nccl_start_fn *start;
	nccl_stop_fn *stop;
	nccl_record_fn *record;
	nccl_finalize_fn *finalize;
};

#endif
