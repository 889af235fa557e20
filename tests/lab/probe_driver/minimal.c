/* The least that NCCL accepts as a profiler plugin: what the calls themselves cost. */
#include "nccl_profiler.h"

static int init(void **context, uint64_t hash, int *mask, const char *name, int nodes, int ranks, int rank, nccl_log log)
{
	(void)hash, (void)name, (void)nodes, (void)ranks, (void)rank, (void)log;
	*context = (void *)1;
	*mask = EVENT_COLL | EVENT_P2P | EVENT_PROXY_OP | EVENT_PROXY_STEP | EVENT_KERNEL;
	return 0;
}

static int start(void *context, void **handle, struct nccl_event_descr *descr)
{
	(void)context, (void)descr;
	*handle = (void *)1;
	return 0;
}

static int stop(void *handle)
{
	(void)handle;
	return 0;
}

static int record(void *handle, int state, union nccl_state_args *args)
{
	(void)handle, (void)state, (void)args;
	return 0;
}

const struct nccl_profiler_v5 ncclProfiler_v6 = { "minimal", init, start, stop, record, stop };
