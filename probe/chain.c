/* A second profiler plugin behind the probe. NCCL gets handles of pairs, the probe's and the other's; each plugin sees its own.
 *
 * Pairs lie in a ring and are never given back, because an event's children may come long after its end: one that 2^20 later
 * events have passed is forgotten. Contexts are kept for good. The other plugin is asked for its own version of the interface. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "chain.h"
#include "dl.h"
#include "probe.h"

#define PAIRS (1u << 20)
#define CONTEXTS 4096
#define PAIR_TAG 0x6full
#define LATER_EVENTS (~0 & ~(EVENT_GROUP_API - 1)) /* those that interface 4 does not know */

struct pair {
	uint64_t handle; /* as NCCL has it: tag 8 | number 56 */
	uint64_t own;
	void *other;
};

struct context {
	void *own, *other;
};

bool chained;

static nccl_start_fn *other_start;
static nccl_stop_fn *other_stop;
static nccl_record_fn *other_record;
static nccl_finalize_fn *other_finalize;
static const struct nccl_profiler_v4 *other_v4;
static const struct nccl_profiler_v5 *other_v5;
static int other_mask; /* as the other plugin set it; it may keep the address */
static pid_t owner;
static uint64_t next_pair;
static struct pair *pairs;
static struct context contexts[CONTEXTS];
static uint32_t used_contexts;

/* What NCCL makes for a mask: the events asked for and those that they hang from. */
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

/* The newest interface that the other plugin has and that NCCL used on us. */
static bool load_other(const char *path, int interface)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	for (int version = interface; library && version >= 4; version--) {
		char symbol[32];
		const void *table;

		snprintf(symbol, sizeof(symbol), "ncclProfiler_v%d", version);
		table = dlsym(library, symbol);
		if (!table)
			continue;
		if (version == 4)
			other_v4 = table;
		else
			other_v5 = table;
		other_start = other_v4 ? other_v4->start : other_v5->start;
		other_stop = other_v4 ? other_v4->stop : other_v5->stop;
		other_record = other_v4 ? other_v4->record : other_v5->record;
		other_finalize = other_v4 ? other_v4->finalize : other_v5->finalize;
		return true;
	}
	return false;
}

static bool load_once(const struct chain_init *init)
{
	static bool tried;
	const char *path = getenv("NCCLMON_CHAIN_PLUGIN");
	void *memory;

	if (tried || !path || *path != '/')
		return chained;
	tried = true;
	memory = mmap(NULL, PAIRS * sizeof(struct pair), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED || !load_other(path, init->interface))
		return false;
	pairs = memory;
	owner = getpid();
	__atomic_store_n(&chained, true, __ATOMIC_RELEASE);
	return true;
}

static void *join_other(const struct chain_init *i)
{
	void *context = NULL;
	int rc = other_v4 ? other_v4->init(&context, &other_mask, i->name, i->hash, i->nodes, i->ranks, i->rank, i->log)
			  : other_v5->init(&context, i->hash, &other_mask, i->name, i->nodes, i->ranks, i->rank, i->log);

	return rc ? NULL : context;
}

void chain_init(void **context, int *mask, const struct chain_init *init)
{
	uint32_t index;

	if (!load_once(init))
		return;
	index = __atomic_fetch_add(&used_contexts, 1, __ATOMIC_RELAXED);
	if (index >= CONTEXTS) {
		*context = NULL;
		return;
	}
	contexts[index] = (struct context){ *context, join_other(init) };
	*context = &contexts[index];
	*mask |= other_v4 ? other_mask & ~LATER_EVENTS : other_mask;
}

static const struct context *context_pair(const void *context)
{
	uintptr_t at = (uintptr_t)context, first = (uintptr_t)contexts;

	return at >= first && at < first + sizeof(contexts) && !((at - first) % sizeof(*contexts)) ? context : NULL;
}

static const struct pair *pair_of(const void *handle)
{
	const struct pair *pair = &pairs[(uint64_t)handle % PAIRS];

	return (uint64_t)handle >> 56 == PAIR_TAG && __atomic_load_n(&pair->handle, __ATOMIC_ACQUIRE) == (uint64_t)handle ? pair : NULL;
}

static void *make_pair(uint64_t own, void *other)
{
	uint64_t number = __atomic_add_fetch(&next_pair, 1, __ATOMIC_RELAXED), handle = PAIR_TAG << 56 | number;
	struct pair *pair = &pairs[number % PAIRS];

	if (!own && !other)
		return NULL;
	store(&pair->handle, 0);
	pair->own = own;
	pair->other = other;
	__atomic_store_n(&pair->handle, handle, __ATOMIC_RELEASE);
	return (void *)handle;
}

/* Where an operation's descriptor names the group that it came from, or NULL. */
static void **parent_group(uint64_t type, struct nccl_event_descr *descr)
{
	return type == EVENT_COLL ? &descr->coll.parent_group : type == EVENT_P2P ? &descr->p2p.parent_group : NULL;
}

/* The other plugin's part: the event with its own parents in place of the pairs. */
static void *start_other(void *context, uint64_t type, struct nccl_event_descr *descr, const struct pair *parent)
{
	void *given_parent = descr->parent, *given_group = NULL, **group = other_v5 ? parent_group(type, descr) : NULL;
	const struct pair *group_pair;
	void *handle = NULL;

	if (!context || type & (type - 1) || !((uint64_t)with_ancestors(other_mask) & type) || (other_v4 && type & (uint64_t)LATER_EVENTS))
		return NULL;
	if (group) {
		given_group = *group;
		group_pair = pair_of(given_group);
		*group = group_pair ? group_pair->other : NULL;
	}
	descr->parent = parent ? parent->other : NULL;
	other_start(context, &handle, descr);
	descr->parent = given_parent;
	if (group)
		*group = given_group;
	return handle;
}

void *chain_start(void *context, uint64_t type, struct nccl_event_descr *descr)
{
	const struct context *both;
	const struct pair *parent;
	void *given, *other;
	uint64_t own;

	if (type == EVENT_PROXY_OP && descr->proxy_op.pid != owner) {
		own_start(context, type, descr); /* counts it; the addresses in it are another process's */
		return NULL;
	}
	both = context_pair(context);
	if (!both)
		return NULL;
	given = descr->parent;
	parent = pair_of(given);
	descr->parent = parent ? (void *)parent->own : NULL;
	own = own_start(both->own, type, descr);
	descr->parent = given;
	if (other_v4 && type == EVENT_COLL && parent_group(type, descr))
		parent = pair_of(*parent_group(type, descr)) ? pair_of(*parent_group(type, descr)) : parent;
	other = start_other(both->other, type, descr, parent);
	return make_pair(own, other);
}

void chain_stop(void *handle)
{
	const struct pair *pair = pair_of(handle);

	if (!pair)
		return;
	own_stop(pair->own);
	if (pair->other)
		other_stop(pair->other);
}

void chain_record(void *handle, int state, union nccl_state_args *args)
{
	const struct pair *pair = pair_of(handle);

	if (!pair)
		return;
	own_record(pair->own, state, args);
	if (pair->other)
		other_record(pair->other, state, args);
}

void chain_finalize(void *context)
{
	const struct context *both = context_pair(context);

	if (!both)
		return;
	own_finalize(both->own);
	if (both->other)
		other_finalize(both->other);
}
