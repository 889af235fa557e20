/* The network side: proxy operations and their steps. One proxy thread calls this for a communicator.
 *
 * A proxy operation's handle holds all that is told at its start, because thousands may be queued. Only what is in progress has
 * memory: a `way`, one for each peer of a link (one direction of one channel). Steps complete in order, so the oldest in flight
 * is what the link waits for. A way's key keeps handles of earlier operations, other communicators and other processes out. */
#include "probe.h"

/* A proxy operation: member 10 | channel % 32 5 | send 1 | channel / 32 1 | peer 20 | low bits of the operation's position 16.
 * A step: member 10 | channel % 32 5 | send 1 | way 3 | generation 26 | number 8. */
#define PROXY_LINK(handle) bits(handle, 37, 6)
#define STEP_WAY(handle) bits(handle, 34, 19)
#define SENDS(link) ((link) & 1)
#define GENERATIONS ((1ull << 26) - 1)

static const uint8_t first_wait[] = { WAIT_RECV_NETWORK, WAIT_SEND_GPU }; /* by "is a send" */
static const uint8_t next_wait[2][STATE_KERNEL_STOP + 1] = {
	{ [STATE_RECV_FLUSH_WAIT] = WAIT_RECV_FLUSH, [STATE_RECV_GPU_WAIT] = WAIT_RECV_GPU },
	{ [STATE_SEND_PEER_WAIT] = WAIT_SEND_PEER, [STATE_SEND_WAIT] = WAIT_SEND_NETWORK },
};

static inline struct way *link_ways(uint64_t proxy)
{
	return &process->way[bits(proxy, 37, 16) * WAYS];
}

static inline uint8_t oldest_wait(const struct way *way)
{
	return way->done == way->posted ? WAIT_NONE : way->wait[way->done % IN_FLIGHT];
}

/* Rebuild a link's word after a change of what is in progress on it: with several connections, the one most behind is shown. */
NOINLINE static void publish(struct way *ways, uint64_t *link, uint32_t newly_done)
{
	uint64_t word = load(link);
	struct way *shown = NULL;
	int active = 0;

	for (int i = 0; i < WAYS; i++) {
		if (!ways[i].handle)
			continue;
		active++;
		if (!shown || ways[i].done < shown->done)
			shown = &ways[i];
	}
	for (int i = 0; i < WAYS; i++)
		ways[i].several = active > 1;
	if (shown)
		word = NCCLMON_LINK((uint32_t)word + newly_done, bits(shown->handle, 16, 20), oldest_wait(shown),
				    shown->posted - shown->done, shown->moved - shown->done);
	else
		word = NCCLMON_LINK((uint32_t)word + newly_done, bits(word, 32, 20), WAIT_NONE, 0, 0);
	store(link, word);
}

/* Change a link's word for a step of `way`: its fields are added to, all at once. */
static inline void change(struct way *way, uint64_t delta, uint32_t newly_done)
{
	if (likely(!way->several))
		store(way->link, load(way->link) + delta);
	else
		publish(way - (way - process->way) % WAYS, way->link, newly_done);
}

static inline void count_done(struct ncclmon_flow *flow, uint32_t steps)
{
	grow(&flow->done, steps);
	store(&flow->last_ns, coarse_ns());
}

static struct ncclmon_flow *flow_of(struct member *m, uint32_t link)
{
	return SENDS(link) ? &m->frame->send : &m->frame->recv;
}

/* The operation that a proxy operation is part of, while it is in flight. */
static struct slot *parent_slot(struct member *m, uint64_t proxy)
{
	uint32_t newest = (uint32_t)load(&m->frame->enqueued);
	uint32_t position = newest - ((newest - bits(proxy, 0, 16)) & 0xffff);
	struct slot *s = &m->slot[position % SLOTS];

	return position && load(&s->at) == position && !s->done ? s : NULL;
}

NOINLINE uint64_t proxy_start(struct member *m, uint64_t parent, const struct nccl_proxy_op *op)
{
	uint32_t peer = op->peer < 0 || op->peer > NO_PEER ? NO_PEER : (uint32_t)op->peer;
	struct slot *s = op_slot(m, parent);

	if (m->shared)
		return 0;
	if (op->channel >= NCCLMON_CHANNELS)
		add_flag(m->frame, FLAG_FOLDED);
	if (s && !m->kernel_events) {
		if (load(&s->at) != bits(parent, 0, 32))
			device_meets(s, bits(parent, 0, 32));
		s->proxies++;
	}
	return HANDLE(KIND_PROXY, member_index(m),
		      (uint64_t)(op->channel & 31) << 38 | (uint64_t)!!op->is_send << 37 | (uint64_t)(op->channel >> 5 & 1) << 36 |
			      (uint64_t)peer << 16 | (s ? bits(parent, 0, 16) : 0));
}

/* Take a free way for a proxy operation. One of the same connection still there has ended without telling. */
NOINLINE static struct way *new_way(struct member *m, uint64_t proxy)
{
	struct way *ways = link_ways(proxy), *way = NULL;
	uint32_t link = PROXY_LINK(proxy), missing;
	struct ncclmon_channel *channel = &m->frame->channel[link / 2];

	add_flag(m->frame, FLAG_STEPS_SEEN);
	for (int i = 0; i < WAYS; i++) {
		if (ways[i].handle && ways[i].handle >> 16 == proxy >> 16)
			way = &ways[i];
	}
	for (int i = 0; i < WAYS && !way; i++) {
		if (!ways[i].handle)
			way = &ways[i];
	}
	if (!way) {
		grow(&m->frame->lost_steps, 1);
		return NULL;
	}
	missing = way->posted - way->done;
	*way = (struct way){ .handle = proxy, .key = way->key, .link = SENDS(link) ? &channel->send : &channel->recv,
			     .flow = flow_of(m, link), .last_step = UINT16_MAX };
	way->key = (HANDLE(KIND_STEP, member_index(m), (uint64_t)link << 37 | (uint64_t)(way - ways) << 34) >> 8) |
		   ((way->key + 1) & GENERATIONS);
	if (missing)
		count_done(way->flow, missing);
	publish(ways, way->link, missing);
	return way;
}

/* The way that a proxy operation has, or gets. */
static inline struct way *way_for(uint64_t proxy)
{
	struct way *ways = link_ways(proxy);
	struct member *m;

	if (likely(ways->handle == proxy))
		return ways;
	for (int i = 1; i < WAYS; i++) {
		if (ways[i].handle == proxy)
			return &ways[i];
	}
	m = handle_member(proxy);
	return m ? new_way(m, proxy) : NULL;
}

NOINLINE void proxy_progress(uint64_t handle)
{
	struct member *m = handle_member(handle);
	struct slot *s;

	if (!m)
		return;
	way_for(handle);
	s = m->kernel_events ? NULL : parent_slot(m, handle);
	if (s && !load(&s->op.started_ns)) {
		device_started(m, s);
		record_progress(m, s);
	}
}

/* An operation that ends has done all its steps, also those whose own end was not told. */
NOINLINE void proxy_stop(uint64_t handle)
{
	struct member *m = handle_member(handle);
	struct way *ways = m ? link_ways(handle) : NULL, *way = NULL;
	uint32_t missing;
	struct slot *s;

	for (int i = 0; m && i < WAYS && !way; i++) {
		if (ways[i].handle == handle)
			way = &ways[i];
	}
	if (!way)
		return;
	missing = way->posted - way->done;
	way->done = way->moved = way->posted;
	way->handle = 0;
	if (missing)
		count_done(way->flow, missing);
	publish(ways, way->link, missing);
	s = m->kernel_events ? NULL : parent_slot(m, handle);
	if (s && ++s->proxies_stopped == s->proxies)
		device_finished(m, s);
}

/* A step begun twice, or one that cannot be followed: where all ways are taken, only totals are counted. */
NOINLINE static uint64_t step_start_odd(uint64_t parent, struct way *way, int step)
{
	if (!way)
		return handle_member(parent) ? HANDLE(KIND_COUNTED_STEP, bits(parent, 43, 10), PROXY_LINK(parent)) : 0;
	return way->last_step == (uint16_t)step ? way->key << 8 | ((way->posted - 1) & 0xff) : 0;
}

NOINLINE uint64_t step_start(uint64_t parent, int step)
{
	uint8_t wait = first_wait[bits(parent, 37, 1)];
	struct way *way;

	if (unlikely(!process || !handle_is(parent, KIND_PROXY)))
		return 0;
	way = way_for(parent);
	if (unlikely(!way || (way->last_step == (uint16_t)step && way->posted > way->done) ||
		     way->posted - way->done >= IN_FLIGHT - 1))
		return step_start_odd(parent, way, step);
	way->last_step = (uint16_t)step;
	way->wait[way->posted % IN_FLIGHT] = wait;
	way->posted++;
	change(way, NCCLMON_LINK(0, 0, way->posted == way->done + 1 ? wait : 0, 1, 0), 0);
	return way->key << 8 | ((way->posted - 1) & 0xff);
}

/* The way of a step in flight and the step's number, or NULL. */
static inline struct way *step_way(uint64_t handle, uint32_t *step)
{
	struct way *way;

	if (unlikely(!process))
		return NULL;
	way = &process->way[STEP_WAY(handle)];
	*step = way->done + (((uint32_t)handle - way->done) & 0xff);
	return way->key == handle >> 8 && *step < way->posted ? way : NULL;
}

/* States come in order, some again and again at each poll: only a later one changes anything. */
NOINLINE void step_state(uint64_t handle, int state, const union nccl_state_args *args)
{
	uint8_t wait = (unsigned)state <= STATE_KERNEL_STOP ? next_wait[bits(handle, 37, 1)][state] : WAIT_NONE, before;
	uint32_t step;
	struct way *way = step_way(handle, &step);
	bool moves;

	if (unlikely(!way))
		return;
	before = way->wait[step % IN_FLIGHT];
	if (wait <= before || unlikely(!before))
		return;
	way->wait[step % IN_FLIGHT] = wait;
	moves = wait == WAIT_SEND_NETWORK || before == WAIT_RECV_NETWORK;
	if (moves) {
		way->moved++;
		grow(&way->flow->moved, 1);
		grow(&way->flow->bytes, args ? args->proxy_step.bytes : 0);
	}
	change(way, NCCLMON_LINK(0, 0, step == way->done ? wait - before : 0, 0, moves), 0);
}

/* A step that ends before an older one, or without having moved, or for the second time. */
NOINLINE static void step_stop_odd(struct way *way, uint32_t step)
{
	uint32_t done = way->done;

	way->wait[step % IN_FLIGHT] = WAIT_NONE;
	while (way->done < way->posted && way->wait[way->done % IN_FLIGHT] == WAIT_NONE)
		way->done++;
	done = way->done - done;
	if (way->moved < way->done)
		way->moved = way->done;
	if (done)
		count_done(way->flow, done);
	publish(way - (way - process->way) % WAYS, way->link, done);
}

NOINLINE void step_stop(uint64_t handle)
{
	uint32_t step;
	struct way *way = step_way(handle, &step);
	uint8_t before, next;

	if (unlikely(!way))
		return;
	before = way->wait[step % IN_FLIGHT];
	next = way->wait[(step + 1) % IN_FLIGHT];
	if (unlikely(step != way->done || way->moved == step || (step + 1 < way->posted && !next))) {
		step_stop_odd(way, step);
		return;
	}
	way->wait[step % IN_FLIGHT] = WAIT_NONE;
	way->done++;
	count_done(way->flow, 1);
	change(way, NCCLMON_LINK(1, 0, next, 0, 0) - NCCLMON_LINK(0, 0, before, 1, 1), 1);
}

void counted_step_stop(uint64_t handle)
{
	struct member *m = handle_member(handle);

	if (m)
		count_done(flow_of(m, bits(handle, 0, 6)), 1);
}
