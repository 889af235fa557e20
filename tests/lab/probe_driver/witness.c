/* A user's own profiler plugin, behind the probe: it insists on seeing its own contexts and handles and nothing else, and says at
 * finalize what it saw. */
#include <stdio.h>
#include <stdlib.h>

#include "nccl_profiler.h"

#define OURS 0x0715u
#define MOST 100000

struct seen {
	unsigned magic;
	uint64_t type;
};

static struct seen context = { OURS, 0 };
static struct seen events[MOST];
static int started, stopped, states, foreign;

static void insist(bool right, const char *what)
{
	if (!right) {
		fprintf(stderr, "witness: %s\n", what);
		abort();
	}
}

static bool own(const void *handle)
{
	const struct seen *event = handle;

	return event >= events && event < events + MOST && event->magic == OURS;
}

static int init(void **out, uint64_t hash, int *mask, const char *name, int nodes, int ranks, int rank, nccl_log log)
{
	(void)hash, (void)name, (void)nodes, (void)ranks, (void)rank, (void)log;
	*out = &context;
	*mask = EVENT_COLL | EVENT_KERNEL | EVENT_KERNEL_LAUNCH;
	return 0;
}

static int start(void *given, void **handle, struct nccl_event_descr *descr)
{
	struct seen *event = &events[started % MOST];

	insist(given == &context, "another's context");
	insist(!descr->parent || own(descr->parent), "another's parent");
	insist(descr->type != EVENT_COLL || !descr->coll.parent_group || own(descr->coll.parent_group), "another's group");
	insist(!(descr->type & (EVENT_PROXY_OP | EVENT_PROXY_STEP)), "an event that it did not ask for");
	foreign += descr->type == EVENT_KERNEL && !own(descr->parent);
	*event = (struct seen){ OURS, descr->type };
	started++;
	*handle = event;
	return 0;
}

static int stop(void *handle)
{
	insist(own(handle), "another's handle");
	stopped++;
	return 0;
}

static int record(void *handle, int state, union nccl_state_args *args)
{
	(void)state, (void)args;
	insist(own(handle), "another's handle");
	states++;
	return 0;
}

static int finalize(void *given)
{
	insist(given == &context, "another's context");
	printf("witness: %d started, %d stopped, %d states, %d orphans\n", started, stopped, states, foreign);
	fflush(stdout);
	return 0;
}

const struct nccl_profiler_v5 ncclProfiler_v5 = { "witness", init, start, stop, record, finalize };
