/* Operations as readers see them: the newest, the oldest unfinished, and the last few finished.
 *
 * A record's version is odd while it is being written. Two threads may want to write one record (the enqueuing thread and the one
 * that sees operations end): whoever finds it taken leaves it, and the next event of either puts it right. Nobody waits. */
#include "probe.h"

#define store_after(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)

static bool begin(struct ncclmon_op *record, uint32_t *version)
{
	*version = load(&record->version);
	return !(*version & 1) && __atomic_compare_exchange_n(&record->version, version, *version + 1, false, __ATOMIC_ACQ_REL,
							      __ATOMIC_RELAXED);
}

static void write_record(struct ncclmon_frame *frame, struct ncclmon_op *record, const struct ncclmon_op *op)
{
	const uint64_t *from = (const uint64_t *)op;
	uint64_t *to = (uint64_t *)record;
	uint32_t version;

	if (unlikely(!begin(record, &version))) {
		__atomic_fetch_add(&frame->skipped, 1, __ATOMIC_RELAXED);
		return;
	}
	store_after((uint32_t *)record + 1, load((const uint32_t *)op + 1));
	for (size_t i = 1; i < sizeof(*op) / sizeof(*from); i++)
		store_after(to + i, load(from + i));
	store_after(&record->version, version + 2);
}

void record_newest(struct member *m, const struct ncclmon_op *op)
{
	write_record(m->frame, &m->frame->newest, op);
}

/* Show operation `finished + 1` where it is not shown yet and has been enqueued. */
void record_oldest(struct member *m)
{
	struct ncclmon_frame *frame = m->frame;
	uint32_t position = (uint32_t)load(&frame->finished) + 1;
	struct slot *s = &m->slot[position % SLOTS];

	if (load(&frame->oldest.position) == position || __atomic_load_n(&s->op.position, __ATOMIC_ACQUIRE) != position)
		return;
	write_record(frame, &frame->oldest, &s->op);
	store(&frame->started_channels, load(&s->started));
	store(&frame->stopped_channels, load(&s->stopped));
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

void record_finished(struct member *m, const struct ncclmon_op *op)
{
	write_record(m->frame, &m->frame->recent[load(&op->position) % NCCLMON_RECENT], op);
}
