/* The probe's private side: per-communicator memory, handles, and what one file calls in another.
 *
 * After init nothing here locks, allocates, starts a thread or makes a system call. Handles are numbers that are checked before
 * use, never pointers: a stale, foreign or invented handle is recognised and ignored. */
#ifndef NCCLMON_PROBE_H
#define NCCLMON_PROBE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "frame.h"
#include "nccl_profiler.h"

#define SLOTS 1024 /* operations of a communicator in flight; CUDA's own launch queue is about as long */
#define LINKS (2 * NCCLMON_CHANNELS)
#define WAYS 8      /* connections of one link in progress at once: a tree has three peers, an all-to-all many */
#define IN_FLIGHT 16 /* steps of a connection; NCCL has 8 */
#define NO_PEER 0xfffff
#define MOST_FRAMES 1024 /* what a handle can tell apart */

#define load(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#define store(p, v) __atomic_store_n(p, v, __ATOMIC_RELAXED)
#define grow(p, by) store(p, load(p) + (by)) /* a counter with one writer */
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define NOINLINE __attribute__((noinline))

/* An operation in flight. `op` and `launch` are written by the enqueuing thread, `op.position` last; what the device does with it
 * is the device thread's, and means this operation once `at` is its position. */
struct slot {
	struct ncclmon_op op;
	uint32_t launch;
	uint32_t at;
	uint64_t started, stopped; /* channels */
	uint64_t gpu_first, gpu_last;
	uint16_t proxies, proxies_stopped;
	bool done;
} __attribute__((aligned(128)));

/* A network connection in progress: one peer of one link. Proxy thread only. One cache line. */
struct way {
	uint64_t key;    /* its steps' handles but for the number of the step */
	uint64_t handle; /* of its proxy operation, 0 = none in progress */
	uint64_t *link;  /* word in the frame */
	struct ncclmon_flow *flow;
	uint8_t wait[IN_FLIGHT]; /* what each step in flight waits for */
	uint32_t posted, moved, done; /* steps of this operation */
	uint16_t last_step;
	bool several; /* others are in progress on the link */
} __attribute__((aligned(64)));

/* A communicator's private memory, beside its frame. */
struct member {
	struct ncclmon_frame *frame;
	uint64_t op_handle; /* of its operations, but for the position */
	bool live, shared, kernel_events;
	uint16_t generation;
	uint64_t finalised_ns;
	uint32_t running; /* device thread: operations started, not finished */
	uint32_t highest; /* device thread: highest position done */
	uint64_t idle_since_ns;
	struct slot slot[SLOTS];
};

/* All that a process has; wiped in a forked child, which then ignores every call until it makes communicators of its own. */
struct process {
	bool live;
	bool coarse; /* reading the exact clock is a system call here */
	pid_t pid;
	int mask;
	struct ncclmon_header *header;
	struct ncclmon_frame *frames;
	uint32_t count;
	struct way way[MOST_FRAMES * LINKS * WAYS] __attribute__((aligned(512))); /* by member, link, number */
	struct member member[];
};

extern struct process *process; /* NULL until the first init; then fixed */

/* Handles: tag 8 | kind 3 | member 10 | 43 bits of its own. */
enum kind { KIND_MEMBER = 1, KIND_OP, KIND_KERNEL, KIND_PROXY, KIND_STEP, KIND_COUNTED_STEP, KIND_OTHER };

#define HANDLE_TAG 0x6eull
#define HANDLE(kind, member, rest) (HANDLE_TAG << 56 | (uint64_t)(kind) << 53 | (uint64_t)(member) << 43 | (rest))

static inline bool handle_is(uint64_t handle, enum kind kind)
{
	return handle >> 53 == (HANDLE_TAG << 3 | kind);
}

static inline uint32_t bits(uint64_t value, int low, int width)
{
	return (uint32_t)(value >> low & ((1ull << width) - 1));
}

/* The live member that a handle speaks of, or NULL. */
static inline struct member *handle_member(uint64_t handle)
{
	uint32_t index = bits(handle, 43, 10);

	if (unlikely(!process || index >= process->count)) /* none in a forked child */
		return NULL;
	return likely(__atomic_load_n(&process->member[index].live, __ATOMIC_ACQUIRE)) ? &process->member[index] : NULL;
}

static inline uint32_t member_index(const struct member *m)
{
	return (uint32_t)(m - process->member);
}

static inline uint64_t clock_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Exact time where that costs no system call. */
static inline uint64_t now_ns(void)
{
	return clock_ns(unlikely(process->coarse) ? CLOCK_MONOTONIC_COARSE : CLOCK_MONOTONIC);
}

static inline uint64_t coarse_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC_COARSE);
}

static inline void add_flag(struct ncclmon_frame *frame, uint8_t flag)
{
	if (unlikely(!(load(&frame->flags) & flag)))
		__atomic_fetch_or(&frame->flags, flag, __ATOMIC_RELAXED);
}

NOINLINE __attribute__((cold, unused)) static void bad_handle(void)
{
	if (process && process->live)
		__atomic_fetch_add(&process->header->bad_handles, 1, __ATOMIC_RELAXED);
}

/* setup.c */
struct member *setup_member(uint64_t hash, const char *name, int nodes, int ranks, int rank, int interface, const void *caller,
			    nccl_log log);
void setup_release(struct member *m);

/* names.c: NCCL's strings to codes of frame.h */
uint8_t name_function(const char *name);
uint8_t name_algorithm(const char *name);
uint8_t name_protocol(const char *name);
uint8_t name_datatype(const char *name);
uint32_t datatype_bytes(uint8_t datatype);

/* record.c: operations as readers see them */
void record_newest(struct member *m, const struct ncclmon_op *op);
void record_oldest(struct member *m);
void record_progress(struct member *m, const struct slot *s);
void record_finished(struct member *m, const struct ncclmon_op *op);

/* enqueue.c */
uint64_t enqueue_coll(struct member *m, const struct nccl_coll *coll);
uint64_t enqueue_p2p(struct member *m, const struct nccl_p2p *p2p);
void enqueue_call(struct member *m);
void enqueue_launch(struct member *m);
struct slot *op_slot(struct member *m, uint64_t handle);

/* device.c */
uint64_t kernel_start(struct member *m, uint64_t parent, uint8_t channel, uint64_t gpu_ns);
void kernel_stop(uint64_t handle, uint64_t gpu_ns);
void device_started(struct member *m, struct slot *s);
void device_finished(struct member *m, struct slot *s);
void device_meets(struct slot *s, uint32_t position);

/* steps.c */
uint64_t proxy_start(struct member *m, uint64_t parent, const struct nccl_proxy_op *op);
void proxy_progress(uint64_t handle);
void proxy_stop(uint64_t handle);
uint64_t step_start(uint64_t parent, int step);
void step_state(uint64_t handle, int state, const union nccl_state_args *args);
void step_stop(uint64_t handle);
void counted_step_stop(uint64_t handle);

#endif
