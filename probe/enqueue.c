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

static uint64_t publish(struct member *m, struct slot *s, uint32_t position)
{
	__atomic_store_n(&s->op.position, position, __ATOMIC_RELEASE);
	record_newest(m, &s->op);
	record_oldest(m);
	return HANDLE(KIND_OP, member_index(m), (uint64_t)(m->generation & 0x7ff) << 32 | position);
}

static void prepare(struct member *m, struct slot *s)
{
	store(&s->op.position, 0);
	store(&s->started, 0);
	store(&s->stopped, 0);
	s->gpu_first = UINT64_MAX;
	s->gpu_last = 0;
	s->launch = load(&m->frame->launches);
	s->proxies = 0;
	s->proxies_stopped = 0;
	store(&s->done, false);
	store(&s->op.enqueued_ns, now_ns());
	store(&s->op.started_ns, 0);
	store(&s->op.ended_ns, 0);
	store(&s->op.device_64ns, 0);
}

static void describe(struct slot *s, const struct ncclmon_op *what)
{
	store((uint32_t *)&s->op + 1, *((const uint32_t *)what + 1));
	store(&s->op.round, what->round);
	store(&s->op.count, what->count);
	store(&s->op.peer, what->peer);
	store(&s->op.sequence, what->sequence);
	store(&s->op.channels, what->channels ? what->channels : 1);
	store(&s->op.started, 0);
	store(&s->op.stopped, 0);
	store(&s->op.flags, what->flags);
	s->bytes = what->count * datatype_bytes(what->datatype);
}

/* `enqueued` holds operations in its low half and collectives in its high half, so that one addition numbers both. */
uint64_t enqueue_coll(struct member *m, const struct nccl_coll *coll)
{
	uint64_t numbers = __atomic_add_fetch(&m->frame->enqueued, 1ull << 32 | 1, __ATOMIC_RELAXED);
	struct ncclmon_op what = { .round = (uint32_t)(numbers >> 32), .count = coll->count, .peer = coll->root,
				   .sequence = (uint32_t)coll->sequence, .channels = coll->channels };
	struct slot *s;

	what.function = name_function(coll->function);
	if (what.function >= FUNCTION_BROADCAST && what.function <= FUNCTION_ALLREDUCE)
		store(&m->frame->sequence[what.function - 1], what.sequence + 1);
	s = unlikely(m->shared) ? NULL : claim(m, (uint32_t)numbers);
	if (unlikely(!s))
		return 0;
	what.algorithm = name_algorithm(coll->algorithm);
	what.protocol = name_protocol(coll->protocol);
	what.datatype = name_datatype(coll->datatype);
	prepare(m, s);
	describe(s, &what);
	return publish(m, s, (uint32_t)numbers);
}

uint64_t enqueue_p2p(struct member *m, const struct nccl_p2p *p2p)
{
	uint64_t numbers = __atomic_add_fetch(&m->frame->enqueued, 1, __ATOMIC_RELAXED);
	struct ncclmon_op what = { .count = p2p->count, .peer = p2p->peer, .channels = p2p->channels };
	struct slot *s;

	what.function = name_function(p2p->function);
	what.flags = what.function == FUNCTION_RECV ? OP_RECV : OP_SEND;
	what.round = (uint32_t)__atomic_add_fetch(what.flags & OP_RECV ? &m->frame->receives : &m->frame->sends, 1, __ATOMIC_RELAXED);
	what.sequence = what.round - 1;
	s = unlikely(m->shared) ? NULL : claim(m, (uint32_t)numbers);
	if (unlikely(!s))
		return 0;
	what.datatype = name_datatype(p2p->datatype);
	prepare(m, s);
	describe(s, &what);
	return publish(m, s, (uint32_t)numbers);
}

void enqueue_call(struct member *m)
{
	__atomic_fetch_add(&m->frame->calls, 1, __ATOMIC_RELAXED);
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

	if (handle_kind(handle) != KIND_OP || bits(handle, 32, 11) != (m->generation & 0x7ff) || m->shared)
		return NULL;
	return __atomic_load_n(&s->op.position, __ATOMIC_ACQUIRE) == position && position ? s : NULL;
}
