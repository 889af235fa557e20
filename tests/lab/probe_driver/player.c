/* Plays NCCL's part towards a profiler plugin. */
#include "player.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* NCCL also makes the events that those asked for hang from. */
static int with_ancestors(int mask)
{
	if (mask & (EVENT_PROXY_STEP | EVENT_NET_PLUGIN))
		mask |= EVENT_PROXY_OP;
	if (mask & (EVENT_PROXY_OP | EVENT_KERNEL))
		mask |= EVENT_COLL | EVENT_P2P;
	if (mask & (EVENT_COLL | EVENT_P2P))
		mask |= EVENT_GROUP | EVENT_COLL_API | EVENT_P2P_API;
	if (mask & (EVENT_COLL_API | EVENT_P2P_API | EVENT_KERNEL_LAUNCH))
		mask |= EVENT_GROUP_API;
	return mask;
}

void player_load(struct player *p, const char *path, int interface)
{
	p->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!p->library) {
		fprintf(stderr, "%s\n", dlerror());
		exit(2);
	}
	for (p->interface = interface ? interface : 6; p->interface >= (interface ? interface : 4); p->interface--) {
		char symbol[32];
		const void *table;

		snprintf(symbol, sizeof(symbol), "ncclProfiler_v%d", p->interface);
		table = dlsym(p->library, symbol);
		if (!table)
			continue;
		if (p->interface == 4)
			p->v4 = table;
		else
			p->v5 = table;
		p->start_fn = p->v4 ? p->v4->start : p->v5->start;
		p->stop_fn = p->v4 ? p->v4->stop : p->v5->stop;
		p->record_fn = p->v4 ? p->v4->record : p->v5->record;
		p->finalize_fn = p->v4 ? p->v4->finalize : p->v5->finalize;
		return;
	}
	fprintf(stderr, "%s: no profiler interface that the player knows\n", path);
	exit(2);
}

static void quiet(int level, unsigned long subsystems, const char *file, int line, const char *format, ...)
{
	(void)level, (void)subsystems, (void)file, (void)line, (void)format;
}

void *player_init(struct player *p, uint64_t hash, const char *name, int nodes, int ranks, int rank)
{
	void *context = NULL;
	int mask = 0, rc;

	rc = p->v4 ? p->v4->init(&context, &mask, name, hash, nodes, ranks, rank, quiet)
		   : p->v5->init(&context, hash, &mask, name, nodes, ranks, rank, quiet);
	if (rc) {
		fprintf(stderr, "init failed: %d\n", rc);
		exit(1);
	}
	p->mask = with_ancestors(mask);
	if (p->v4)
		p->mask &= ~(EVENT_GROUP_API | EVENT_COLL_API | EVENT_P2P_API);
	return context;
}

void *player_start(const struct player *p, void *context, struct nccl_event_descr *descr)
{
	void *handle = NULL;

	if (!(p->mask & (int)descr->type))
		return NULL;
	if (p->v4)
		descr->type |= 0xdeadbeefull << 8; /* only a byte of it is there */
	p->start_fn(context, &handle, descr);
	return handle;
}

void player_stop(const struct player *p, void *handle)
{
	if (handle)
		p->stop_fn(handle);
}

void player_state(const struct player *p, void *handle, int state, uint64_t argument)
{
	union nccl_state_args args = { .proxy_step = { argument } };

	if (handle)
		p->record_fn(handle, state, &args);
}

void player_finalize(const struct player *p, void *context)
{
	p->finalize_fn(context);
}

static void *start_simple(const struct player *p, void *context, int type, void *parent)
{
	struct nccl_event_descr descr = { .type = (uint64_t)type, .parent = parent };

	return player_start(p, context, &descr);
}

/* The events around an operation, in NCCL's order. */
static void *operation(const struct player *p, void *context, struct nccl_event_descr *descr, int api)
{
	void *group_api = start_simple(p, context, EVENT_GROUP_API, NULL), *call, *group, *handle;

	player_state(p, group_api, 23, 0);
	call = start_simple(p, context, api, group_api);
	player_stop(p, call);
	player_state(p, group_api, 24, 0);
	group = start_simple(p, context, EVENT_GROUP, NULL);
	descr->parent = p->v4 ? group : call;
	handle = player_start(p, context, descr);
	player_stop(p, handle);
	player_stop(p, group);
	player_stop(p, group_api);
	return handle;
}

void *player_collective(const struct player *p, void *context, const struct nccl_coll *coll)
{
	struct nccl_event_descr descr = { .type = EVENT_COLL, .coll = *coll };

	return operation(p, context, &descr, EVENT_COLL_API);
}

void *player_p2p(const struct player *p, void *context, const struct nccl_p2p *p2p)
{
	struct nccl_event_descr descr = { .type = EVENT_P2P, .p2p = *p2p };

	return operation(p, context, &descr, EVENT_P2P_API);
}

void *player_proxy_op(const struct player *p, void *context, void *parent, struct nccl_proxy_op op)
{
	struct nccl_event_descr descr = { .type = EVENT_PROXY_OP, .parent = parent, .proxy_op = op };

	return player_start(p, context, &descr);
}

void *player_step(const struct player *p, void *context, void *parent, int step)
{
	struct nccl_event_descr descr = { .type = EVENT_PROXY_STEP, .parent = parent, .proxy_step = { step } };

	return player_start(p, context, &descr);
}

void *player_kernel(const struct player *p, void *context, void *parent, uint8_t channel, uint64_t gpu_ns)
{
	struct nccl_event_descr descr = { .type = EVENT_KERNEL, .parent = parent, .kernel = { channel, gpu_ns } };

	return player_start(p, context, &descr);
}

void player_kernel_stop(const struct player *p, void *handle, uint64_t gpu_ns)
{
	player_state(p, handle, STATE_KERNEL_STOP, gpu_ns);
	player_stop(p, handle);
}
