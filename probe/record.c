/* Operations as readers see them: the newest, the oldest unfinished, and the last few finished.
 *
 * A record's version is odd while it is being written. The oldest may be wanted by two threads at once, the enqueuing one and the
 * one that sees operations end: whoever finds it taken leaves it, and the next event of either puts it right. Nobody waits. */
#include "probe.h"

#define WORDS (sizeof(struct ncclmon_op) / sizeof(uint64_t))
#define store_after(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)

/* Everything but the version, each word after the one before. */
static inline void copy(struct ncclmon_op *record, const struct ncclmon_op *op)
{
	const uint64_t *from = (const uint64_t *)op;
	uint64_t *to = (uint64_t *)record;

	store_after((uint32_t *)record + 1, load((const uint32_t *)op + 1));
	for (size_t i = 1; i < WORDS; i++)
		store_after(to + i, load(from + i));
}

/* A record with one writer. */
static inline void write_own(struct ncclmon_op *record, const struct ncclmon_op *op)
{
	uint32_t version = load(&record->version) | 1;

	store(&record->version, version);
	copy(record, op);
	store_after(&record->version, version + 1);
}

/* Graph replays aside, one thread enqueues on a communicator at a time. Two that do it within the same nanoseconds may leave a
 * mixed record here, until the next operation; numbers and the oldest operation stay right. */
void record_newest(struct member *m, const struct ncclmon_op *op)
{
	write_own(&m->frame->newest, op);
}

void record_finished(struct member *m, const struct ncclmon_op *op)
{
	write_own(&m->frame->recent[load(&op->position) % NCCLMON_RECENT], op);
}

static void write_oldest(struct member *m, const struct slot *s)
{
	struct ncclmon_op *record = &m->frame->oldest;
	uint32_t version = load(&record->version);

	if (unlikely(version & 1 || !__atomic_compare_exchange_n(&record->version, &version, version + 1, false, __ATOMIC_ACQ_REL,
								 __ATOMIC_RELAXED))) {
		__atomic_fetch_add(&m->frame->skipped, 1, __ATOMIC_RELAXED);
		return;
	}
	copy(record, &s->op);
	store_after(&record->version, version + 2);
	if (load(&s->at) != load(&s->op.position))
		return; /* the device has not met it */
	store(&m->frame->started_channels, load(&s->started));
	store(&m->frame->stopped_channels, load(&s->stopped));
}

/* Show operation `finished + 1` where it is not shown yet and has been enqueued. */
void record_oldest(struct member *m)
{
	uint32_t position = (uint32_t)load(&m->frame->finished) + 1;
	struct slot *s = &m->slot[position % SLOTS];

	if (load(&m->frame->oldest.position) != position && __atomic_load_n(&s->op.position, __ATOMIC_ACQUIRE) == position)
		write_oldest(m, s);
}

/* Show how far the device is with an operation, if it is the oldest. */
void record_progress(struct member *m, const struct slot *s)
{
	struct ncclmon_op *oldest = &m->frame->oldest;

	record_oldest(m);
	if (load(&oldest->position) != load(&s->op.position))
		return;
	store(&oldest->started_ns, load(&s->op.started_ns));
	store(&oldest->started, load(&s->op.started));
	store(&oldest->stopped, load(&s->op.stopped));
	store(&m->frame->started_channels, load(&s->started));
	store(&m->frame->stopped_channels, load(&s->stopped));
}
