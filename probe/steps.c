/* The network side: proxy operations and their steps. One proxy thread calls this for a communicator.
 *
 * A proxy operation's handle holds all that is told at its start, because thousands may be queued. Only what is in progress has
 * memory: a `way`, one for each peer of a link (one direction of one channel). Steps complete in order, so the oldest in flight
 * is what the link waits for. */
#include "probe.h"

#define NO_WAY 15 /* in a step's handle: more connections in progress than ways; only totals are counted */

static const uint8_t first_wait[] = { WAIT_RECV_NETWORK, WAIT_SEND_GPU }; /* by "is a send" */

static uint64_t *link_word(struct member *m, uint32_t link)
{
	struct ncclmon_channel *channel = &m->frame->channel[link / 2];

	return link & 1 ? &channel->send : &channel->recv;
}

static uint8_t wait_of(const struct way *way, uint32_t step)
{
	return way->waits >> step % IN_FLIGHT * 4 & 15;
}

static void set_wait(struct way *way, uint32_t step, uint8_t wait)
{
	uint32_t shift = step % IN_FLIGHT * 4;

	way->waits = (way->waits & ~(15ull << shift)) | (uint64_t)wait << shift;
}

/* The way to show for a link: the one most behind, if several are in progress. */
static struct way *shown(struct member *m, uint32_t link, struct way *latest)
{
	uint8_t active = m->active[link];
	struct way *most = latest;

	if (likely(!(active & (active - 1))))
		return active ? &m->way[link][__builtin_ctz(active)] : latest;
	for (; active; active &= active - 1) {
		struct way *way = &m->way[link][__builtin_ctz(active)];

		if (!most->handle || way->done < most->done)
			most = way;
	}
	return most;
}

static void publish(struct member *m, uint32_t link, struct way *latest, uint32_t newly_done)
{
	uint64_t *word = link_word(m, link);
	uint32_t done = (uint32_t)load(word) + newly_done;
	struct way *way = shown(m, link, latest);

	store(word, NCCLMON_LINK(done, bits(way->handle, 16, 20), wait_of(way, way->done), way->posted - way->done,
				 way->moved - way->done));
}

static uint32_t link_of(uint64_t proxy)
{
	return bits(proxy, 37, 5) * 2 + bits(proxy, 36, 1);
}

static struct slot *parent_slot(struct member *m, uint64_t proxy)
{
	uint32_t newest = (uint32_t)load(&m->frame->enqueued);
	uint32_t position = newest - ((newest - bits(proxy, 0, 16)) & 0xffff);
	struct slot *s = &m->slot[position % SLOTS];

	return position && __atomic_load_n(&s->op.position, __ATOMIC_ACQUIRE) == position && !load(&s->done) ? s : NULL;
}

uint64_t proxy_start(struct member *m, uint64_t parent, const struct nccl_proxy_op *op)
{
	uint32_t peer = op->peer < 0 || op->peer > NO_PEER ? NO_PEER : (uint32_t)op->peer;
	struct slot *s = op_slot(m, parent);

	if (m->shared)
		return 0;
	if (op->channel >= NCCLMON_CHANNELS)
		add_flag(m->frame, FLAG_FOLDED);
	if (s && !m->kernel_events)
		s->proxies++;
	return HANDLE(KIND_PROXY, member_index(m), (uint64_t)(op->channel & 63) << 37 | (uint64_t)!!op->is_send << 36 |
							   (uint64_t)peer << 16 | (s ? bits(parent, 0, 16) : 0));
}

/* The way that a proxy operation has, or gets: its connection's from the operation before it, else a free one. */
static struct way *way_for(struct member *m, uint64_t proxy)
{
	uint32_t link = link_of(proxy);
	struct way *ways = m->way[link], *free = NULL;

	for (int i = 0; i < WAYS; i++) {
		if (ways[i].handle == proxy && m->active[link] & 1 << i)
			return &ways[i];
		if (ways[i].handle >> 16 == proxy >> 16)
			free = &ways[i];
	}
	for (int i = 0; i < WAYS && !free; i++) {
		if (!(m->active[link] & 1 << i))
			free = &ways[i];
	}
	if (!free) {
		grow(&m->frame->lost_steps, 1);
		return NULL;
	}
	*free = (struct way){ .handle = proxy, .generation = free->generation + 1, .last_step = -1 };
	m->active[link] |= (uint8_t)(1 << (free - ways));
	publish(m, link, free, 0);
	return free;
}

void proxy_progress(uint64_t handle)
{
	struct member *m = handle_member(handle);
	struct slot *s;

	if (!m) {
		bad_handle();
		return;
	}
	way_for(m, handle);
	s = m->kernel_events ? NULL : parent_slot(m, handle);
	if (s && !load(&s->op.started_ns)) {
		device_started(m, s);
		record_progress(m, s);
	}
}

static void count_done(struct member *m, uint32_t link, uint32_t steps)
{
	struct ncclmon_frame *frame = m->frame;

	if (link & 1) {
		grow(&frame->send_done, steps);
		store(&frame->send_ns, coarse_ns());
	} else {
		grow(&frame->recv_done, steps);
		store(&frame->recv_ns, coarse_ns());
	}
}

/* An operation that ends has done all its steps, also those whose own end was not told. */
void proxy_stop(uint64_t handle)
{
	struct member *m = handle_member(handle);
	uint32_t link = link_of(handle), missing;
	struct slot *s;

	if (!m) {
		bad_handle();
		return;
	}
	for (int i = 0; i < WAYS; i++) {
		struct way *way = &m->way[link][i];

		if (way->handle != handle || !(m->active[link] & 1 << i))
			continue;
		missing = way->posted - way->done;
		way->done = way->moved = way->posted;
		way->waits = 0;
		m->active[link] &= (uint8_t)~(1 << i);
		if (missing)
			count_done(m, link, missing);
		publish(m, link, way, missing);
		s = m->kernel_events ? NULL : parent_slot(m, handle);
		if (s && ++s->proxies_stopped == s->proxies)
			device_finished(m, s);
		return;
	}
}

static uint64_t step_handle(struct member *m, uint32_t link, uint32_t way, uint32_t generation, uint32_t step)
{
	return HANDLE(KIND_STEP, member_index(m),
		      (uint64_t)link << 37 | (uint64_t)way << 33 | (uint64_t)(generation & 0x1ffffff) << 8 | (step & 0xff));
}

uint64_t step_start(uint64_t parent, int step)
{
	struct member *m = handle_member(parent);
	uint32_t link = link_of(parent);
	struct way *way;

	if (!m || handle_kind(parent) != KIND_PROXY)
		return 0;
	add_flag(m->frame, FLAG_STEPS_SEEN);
	way = way_for(m, parent);
	if (unlikely(!way))
		return step_handle(m, link, NO_WAY, 0, 0);
	if (unlikely(way->last_step == step && way->posted > way->done))
		return step_handle(m, link, (uint32_t)(way - m->way[link]), way->generation, way->posted - 1);
	if (unlikely(way->posted - way->done >= IN_FLIGHT - 1))
		return 0;
	way->last_step = step;
	set_wait(way, way->posted, first_wait[link & 1]);
	way->posted++;
	publish(m, link, way, 0);
	return step_handle(m, link, (uint32_t)(way - m->way[link]), way->generation, way->posted - 1);
}

/* The way of a step in flight and the step's number, or NULL. */
static struct way *step_way(struct member *m, uint64_t handle, uint32_t *step)
{
	uint32_t way = bits(handle, 33, 4);
	struct way *w = &m->way[bits(handle, 37, 6)][way % WAYS];

	*step = w->done + ((bits(handle, 0, 8) - w->done) & 0xff);
	return way < WAYS && (w->generation & 0x1ffffff) == bits(handle, 8, 25) && *step < w->posted ? w : NULL;
}

static void count_moved(struct member *m, uint32_t link, struct way *way, uint64_t bytes)
{
	struct ncclmon_frame *frame = m->frame;

	way->moved++;
	if (link & 1) {
		grow(&frame->steps_sent, 1);
		grow(&frame->send_bytes, bytes);
	} else {
		grow(&frame->steps_arrived, 1);
		grow(&frame->recv_bytes, bytes);
	}
}

static uint8_t next_wait(uint32_t link, int state)
{
	switch (state) {
	case STATE_SEND_PEER_WAIT: return link & 1 ? WAIT_SEND_PEER : 0;
	case STATE_SEND_WAIT: return link & 1 ? WAIT_SEND_NETWORK : 0;
	case STATE_RECV_FLUSH_WAIT: return link & 1 ? 0 : WAIT_RECV_FLUSH;
	case STATE_RECV_GPU_WAIT: return link & 1 ? 0 : WAIT_RECV_GPU;
	default: return 0; /* those of a step's start, and unknown ones */
	}
}

/* States come in order, some again and again at each poll: only a later one changes anything. */
void step_state(uint64_t handle, int state, uint64_t bytes)
{
	struct member *m = handle_member(handle);
	uint32_t link = bits(handle, 37, 6), step;
	uint8_t wait = next_wait(link, state), before;
	struct way *way;

	if (!m || !wait)
		return;
	way = step_way(m, handle, &step);
	if (unlikely(!way))
		return;
	before = wait_of(way, step);
	if (wait <= before || !before)
		return;
	set_wait(way, step, wait);
	if (wait == WAIT_SEND_NETWORK || before == WAIT_RECV_NETWORK)
		count_moved(m, link, way, bytes);
	publish(m, link, way, 0);
}

void step_stop(uint64_t handle)
{
	struct member *m = handle_member(handle);
	uint32_t link = bits(handle, 37, 6), step, done;
	struct way *way;

	if (!m)
		return;
	way = step_way(m, handle, &step);
	if (unlikely(!way)) {
		if (bits(handle, 33, 4) == NO_WAY)
			count_done(m, link, 1);
		return;
	}
	if (unlikely(!wait_of(way, step)))
		return;
	set_wait(way, step, WAIT_NONE);
	done = way->done;
	while (way->done < way->posted && !wait_of(way, way->done))
		way->done++;
	done = way->done - done;
	if (way->moved < way->done)
		way->moved = way->done;
	if (done)
		count_done(m, link, done);
	publish(m, link, way, done);
}
