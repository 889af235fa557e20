/* The enqueuing side: operations get their number and a slot when NCCL has launched them. Usually the thread that called NCCL;
 * a replayed CUDA graph reports from another one, so numbers are taken atomically. */
#include "probe.h"

/* The slot for a position, or NULL: too many in flight. */
static struct slot *claim(struct member *m, uint32_t position)
{
	struct ncclmon_frame *frame = m->frame;
	uint8_t evidence = FLAG_KERNEL_SEEN | FLAG_STEPS_SEEN;

	if (likely(position <= (uint32_t)load(&frame->finished) + SLOTS))
		return &m->slot[position % SLOTS];
	if (load(&frame->flags) & evidence) {
		__atomic_fetch_add(&frame->lost_operations, 1, __ATOMIC_RELAXED);
		return NULL;
	}
	/* Nothing ever tells when this communicator's operations end: the oldest is old enough to be forgotten. */
	store(&frame->finished, position - SLOTS);
	return &m->slot[position % SLOTS];
}

/* Makes an operation known: to the device thread by its slot, to readers by the records. */
static uint64_t publish(struct member *m, struct slot *s, struct ncclmon_op *what)
{
	const uint64_t *from = (const uint64_t *)what;
	uint64_t *to = (uint64_t *)&s->op;

	store(&s->op.position, 0);
	what->channels = what->channels ? what->channels : 1;
	what->enqueued_ns = coarse_ns();
	store(&s->launch, load(&m->frame->launches));
	store(to, from[0]);
	for (size_t i = 2; i < sizeof(*what) / sizeof(*from); i++)
		store(to + i, from[i]);
	__atomic_store_n(to + 1, from[1], __ATOMIC_RELEASE); /* position and round */
	record_newest(m, what);
	record_oldest(m);
	return m->op_handle | what->position;
}

/* `enqueued` holds operations in its low half and collectives in its high half, so that one addition numbers both. */
NOINLINE uint64_t enqueue_coll(struct member *m, const struct nccl_coll *coll)
{
	uint64_t numbers = __atomic_add_fetch(&m->frame->enqueued, 1ull << 32 | 1, __ATOMIC_RELAXED);
	struct ncclmon_op what = { .position = (uint32_t)numbers, .round = (uint32_t)(numbers >> 32), .count = coll->count,
				   .peer = coll->root, .sequence = (uint32_t)coll->sequence, .channels = coll->channels };
	struct slot *s;

	what.function = name_function(coll->function);
	if (what.function >= FUNCTION_BROADCAST && what.function <= FUNCTION_ALLREDUCE)
		store(&m->frame->sequence[what.function - 1], what.sequence + 1);
	s = unlikely(m->shared) ? NULL : claim(m, what.position);
	if (unlikely(!s))
		return 0;
	what.algorithm = name_algorithm(coll->algorithm);
	what.protocol = name_protocol(coll->protocol);
	what.datatype = name_datatype(coll->datatype);
	return publish(m, s, &what);
}

NOINLINE uint64_t enqueue_p2p(struct member *m, const struct nccl_p2p *p2p)
{
	uint64_t numbers = __atomic_add_fetch(&m->frame->enqueued, 1, __ATOMIC_RELAXED);
	struct ncclmon_op what = { .position = (uint32_t)numbers, .count = p2p->count, .peer = p2p->peer, .channels = p2p->channels };
	struct slot *s;

	what.function = name_function(p2p->function);
	what.flags = what.function == FUNCTION_RECV ? OP_RECV : OP_SEND;
	what.round = (uint32_t)__atomic_add_fetch(what.flags & OP_RECV ? &m->frame->receives : &m->frame->sends, 1, __ATOMIC_RELAXED);
	what.sequence = what.round - 1;
	s = unlikely(m->shared) ? NULL : claim(m, what.position);
	if (unlikely(!s))
		return 0;
	what.datatype = name_datatype(p2p->datatype);
	return publish(m, s, &what);
}

void enqueue_call(struct member *m)
{
	grow(&m->frame->calls, 1);
	store(&m->frame->called_ns, coarse_ns());
}

void enqueue_launch(struct member *m)
{
	grow(&m->frame->launches, 1);
}

struct slot *op_slot(struct member *m, uint64_t handle)
{
	uint32_t position = bits(handle, 0, 32);
	struct slot *s = &m->slot[position % SLOTS];

	if (!handle_is(handle, KIND_OP) || bits(handle, 32, 11) != (m->generation & 0x7ff) || m->shared)
		return NULL;
	return __atomic_load_n(&s->op.position, __ATOMIC_ACQUIRE) == position && position ? s : NULL;
}
