/* The device side: which operation the GPU has begun and ended. One thread calls this for a communicator: the one that reports
 * kernels or, where kernels are not reported, the proxy thread. */
#include "probe.h"

/* The device thread meets an operation for the first time: its part of the slot is of an earlier one. */
void device_meets(struct slot *s, uint32_t position)
{
	s->gpu_first = UINT64_MAX;
	s->gpu_last = 0;
	s->proxies = 0;
	s->proxies_stopped = 0;
	s->done = false;
	store(&s->started, 0);
	store(&s->stopped, 0);
	store(&s->at, position);
}

void device_started(struct member *m, struct slot *s)
{
	struct ncclmon_frame *frame = m->frame;
	uint64_t now = now_ns();

	store(&s->op.started_ns, now);
	store(&frame->kernel_ns, now);
	if (m->running++ == 0) {
		if (m->idle_since_ns)
			grow(&frame->idle_ns, now - m->idle_since_ns);
		store(&frame->busy_since_ns, now);
	}
}

static void ended(struct member *m, struct slot *s, uint64_t now)
{
	struct ncclmon_frame *frame = m->frame;
	uint64_t device = s->gpu_last > s->gpu_first ? (s->gpu_last - s->gpu_first) >> 6 : 0;

	s->done = true;
	store(&s->op.ended_ns, now);
	store(&frame->kernel_ns, now);
	store(&s->op.device_64ns, device > UINT32_MAX ? UINT32_MAX : (uint32_t)device);
	if (!load(&s->op.started_ns) || --m->running)
		return;
	grow(&frame->busy_ns, now - load(&frame->busy_since_ns));
	store(&frame->busy_since_ns, 0);
	m->idle_since_ns = now;
}

/* Operations are done in order of launch: with one done, all of earlier launches are, whether or not they told so themselves
 * (some kernels report nothing, and reports get lost). Those of the same launch may overtake each other. */
static void advance(struct member *m, uint32_t launch, uint64_t now)
{
	uint32_t position = (uint32_t)load(&m->frame->finished);

	while (position < m->highest) {
		struct slot *s = &m->slot[(position + 1) % SLOTS];

		if (__atomic_load_n(&s->op.position, __ATOMIC_ACQUIRE) == position + 1) {
			if (load(&s->at) != position + 1)
				device_meets(s, position + 1);
			if (!s->done && load(&s->launch) == launch)
				break;
			if (!s->done) {
				store(&s->op.flags, load(&s->op.flags) | OP_INFERRED);
				ended(m, s, now);
			}
			record_finished(m, &s->op);
			grow(&m->frame->finished_bytes, load(&s->op.count) * datatype_bytes(load(&s->op.datatype)));
		}
		store(&m->frame->started_channels, 0);
		store(&m->frame->stopped_channels, 0);
		__atomic_store_n(&m->frame->finished, ++position, __ATOMIC_RELEASE);
	}
	record_oldest(m);
}

void device_finished(struct member *m, struct slot *s)
{
	uint64_t now = now_ns();
	uint32_t position = load(&s->op.position);

	ended(m, s, now);
	if (position > m->highest)
		m->highest = position;
	record_progress(m, s);
	advance(m, load(&s->launch), now);
}

NOINLINE uint64_t kernel_start(struct member *m, uint64_t parent, uint8_t channel, uint64_t gpu_ns)
{
	struct slot *s = op_slot(m, parent);
	uint32_t position = bits(parent, 0, 32);
	uint64_t bit = 1ull << (channel & 63);

	if (!s || position <= (uint32_t)load(&m->frame->finished))
		return 0;
	if (load(&s->at) != position)
		device_meets(s, position);
	if (s->done)
		return 0;
	add_flag(m->frame, FLAG_KERNEL_SEEN);
	if (!(load(&s->started) & bit)) {
		if (!load(&s->started))
			device_started(m, s);
		store(&s->started, load(&s->started) | bit);
		store(&s->op.started, (uint8_t)(load(&s->op.started) + 1));
		if (gpu_ns && gpu_ns < s->gpu_first)
			s->gpu_first = gpu_ns;
		record_progress(m, s);
	}
	return HANDLE(KIND_KERNEL, member_index(m), (uint64_t)(m->generation & 0x1f) << 38 | (uint64_t)(channel & 63) << 32 | position);
}

/* Called for the state that carries the GPU's time and again for the end of the event; the first to come counts. */
NOINLINE void kernel_stop(uint64_t handle, uint64_t gpu_ns)
{
	struct member *m = handle_member(handle);
	uint32_t position = bits(handle, 0, 32);
	uint64_t bit = 1ull << bits(handle, 32, 6);
	struct slot *s;

	if (!m || bits(handle, 38, 5) != (m->generation & 0x1f)) {
		bad_handle();
		return;
	}
	s = &m->slot[position % SLOTS];
	if (load(&s->at) != position || s->done || !(load(&s->started) & bit) ||
	    load(&s->stopped) & bit)
		return;
	if (gpu_ns > s->gpu_last)
		s->gpu_last = gpu_ns;
	store(&s->stopped, load(&s->stopped) | bit);
	store(&s->op.stopped, (uint8_t)(load(&s->op.stopped) + 1));
	if (load(&s->op.stopped) >= load(&s->op.channels))
		device_finished(m, s);
	else
		record_progress(m, s);
}
