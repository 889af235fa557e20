/* What NCCL sees: one table of functions for each version of the interface. Every call returns success, whatever it was given. */
#include <errno.h>
#include <unistd.h>

#include "chain.h"
#include "probe.h"

#define EXPORT __attribute__((visibility("default")))

static int init(void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks, int rank, nccl_log log,
		int interface, const void *caller)
{
	struct chain_init other = { hash, name, nodes, ranks, rank, interface, log };
	int error = errno, events;
	struct member *m = setup_member(hash, name, nodes, ranks, rank, interface, caller, log);

	*context = m ? (void *)HANDLE(KIND_MEMBER, member_index(m), m->generation) : NULL;
	events = m ? process->mask : 0;
	chain_init(context, &events, &other);
	__atomic_store_n(mask, events, __ATOMIC_RELAXED);
	errno = error;
	return 0;
}

static int init_v4(void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks, int rank, nccl_log log)
{
	return init(context, mask, name, hash, nodes, ranks, rank, log, 4, __builtin_return_address(0));
}

static int init_v5(void **context, uint64_t hash, int *mask, const char *name, int nodes, int ranks, int rank, nccl_log log)
{
	return init(context, mask, name, hash, nodes, ranks, rank, log, 5, __builtin_return_address(0));
}

static int init_v6(void **context, uint64_t hash, int *mask, const char *name, int nodes, int ranks, int rank, nccl_log log)
{
	return init(context, mask, name, hash, nodes, ranks, rank, log, 6, __builtin_return_address(0));
}

static struct member *context_member(void *context)
{
	uint64_t handle = (uint64_t)context;
	struct member *m = handle_is(handle, KIND_MEMBER) ? handle_member(handle) : NULL;

	return m && bits(handle, 0, 16) == m->generation ? m : NULL;
}

/* Operations of other processes reach us with their pointers, context and parent included: nothing of them may be looked at. */
static uint64_t start_proxy_op(void *context, const struct nccl_event_descr *descr)
{
	struct member *m;

	if (unlikely(!process || !process->count))
		return 0;
	if (unlikely(descr->proxy_op.pid != process->pid)) {
		__atomic_fetch_add(&process->header->foreign, 1, __ATOMIC_RELAXED);
		return 0;
	}
	m = context_member(context);
	return m ? proxy_start(m, (uint64_t)descr->parent, &descr->proxy_op) : 0;
}

/* An event's handle. Events that need none still get one, because NCCL may leave out what hangs from an event without. */
uint64_t own_start(void *context, uint64_t type, const struct nccl_event_descr *descr)
{
	struct member *m;

	if (type == EVENT_PROXY_STEP)
		return step_start((uint64_t)descr->parent, descr->proxy_step.step);
	if (type == EVENT_PROXY_OP)
		return start_proxy_op(context, descr);
	m = context_member(context);
	if (!m)
		return 0;
	switch (type) {
	case EVENT_KERNEL: return kernel_start(m, (uint64_t)descr->parent, descr->kernel.channel, descr->kernel.gpu_ns);
	case EVENT_COLL: return enqueue_coll(m, &descr->coll);
	case EVENT_P2P: return enqueue_p2p(m, &descr->p2p);
	case EVENT_GROUP: enqueue_launch(m); break;
	case EVENT_COLL_API:
	case EVENT_P2P_API: enqueue_call(m); break;
	case EVENT_GROUP_API: break;
	default: return 0;
	}
	return HANDLE(KIND_OTHER, member_index(m), 0);
}

static inline int start(void *context, void **handle, uint64_t type, struct nccl_event_descr *descr)
{
	*handle = unlikely(load(&chained)) ? chain_start(context, type, descr) : (void *)own_start(context, type, descr);
	return 0;
}

static int start_v4(void *context, void **handle, struct nccl_event_descr *descr)
{
	return start(context, handle, *(const uint8_t *)descr, descr);
}

static int start_v5(void *context, void **handle, struct nccl_event_descr *descr)
{
	return start(context, handle, descr->type, descr);
}

/* The end of an operation's event means that it is enqueued, which its start told. */
void own_stop(uint64_t h)
{
	if (handle_is(h, KIND_STEP))
		step_stop(h);
	else if (handle_is(h, KIND_KERNEL))
		kernel_stop(h, 0);
	else if (handle_is(h, KIND_PROXY))
		proxy_stop(h);
	else if (handle_is(h, KIND_COUNTED_STEP))
		counted_step_stop(h);
	else if (unlikely(h && h >> 56 != HANDLE_TAG))
		bad_handle();
}

static int stop(void *handle)
{
	if (unlikely(load(&chained)))
		chain_stop(handle);
	else
		own_stop((uint64_t)handle);
	return 0;
}

void own_record(uint64_t h, int state, const union nccl_state_args *args)
{
	if (handle_is(h, KIND_STEP))
		step_state(h, state, args);
	else if (handle_is(h, KIND_KERNEL) && state == STATE_KERNEL_STOP)
		kernel_stop(h, args ? args->kernel.gpu_ns : 0);
	else if (handle_is(h, KIND_PROXY) && state == STATE_PROXY_OP_IN_PROGRESS)
		proxy_progress(h);
	else if (unlikely(h && h >> 56 != HANDLE_TAG))
		bad_handle();
}

static int record(void *handle, int state, union nccl_state_args *args)
{
	if (unlikely(load(&chained)))
		chain_record(handle, state, args);
	else
		own_record((uint64_t)handle, state, args);
	return 0;
}

void own_finalize(void *context)
{
	int error = errno;
	struct member *m = context_member(context);

	if (m)
		setup_release(m);
	errno = error;
}

static int finalize(void *context)
{
	if (load(&chained))
		chain_finalize(context);
	else
		own_finalize(context);
	return 0;
}

EXPORT const struct nccl_profiler_v4 ncclProfiler_v4 = { "ncclmon", init_v4, start_v4, stop, record, finalize };
EXPORT const struct nccl_profiler_v5 ncclProfiler_v5 = { "ncclmon", init_v5, start_v5, stop, record, finalize };
EXPORT const struct nccl_profiler_v5 ncclProfiler_v6 = { "ncclmon", init_v6, start_v5, stop, record, finalize };
