/* bench PLUGIN|none [ROUNDS]: nanoseconds for each kind of event, one line "kind median minimum" each. Each round plays batches as
 * NCCL would and times each batch as a whole; the clock is read twice a batch. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "player.h"

#define BATCH 512
#define CHANNELS 2
#define STEPS 8
#define MOST_ROUNDS 4096

enum { COLLECTIVE, WHOLE_CALL, KERNEL, ALONE, PROXY_OP, SEND_STEP, RECV_STEP, REPEATED_WAIT, KINDS };
static const char *const kinds[] = { "collective", "whole_call", "kernel_channel", "operation_alone", "proxy_operation",
				     "send_step", "receive_step", "repeated_wait" };

static struct player player;
static void *context;
static pid_t own; /* asking for it is a system call */
static double samples[KINDS][MOST_ROUNDS];
static const struct nccl_coll coll = { .function = "AllReduce", .count = 1 << 20, .datatype = "ncclFloat32", .channels = CHANNELS,
				       .algorithm = "RING", .protocol = "SIMPLE" };

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void *start(struct nccl_event_descr *descr)
{
	void *handle = NULL;

	if (player.start_fn)
		player.start_fn(context, &handle, descr);
	return handle;
}

static void stop(void *handle)
{
	if (player.stop_fn)
		player.stop_fn(handle);
}

static void state(void *handle, int which, uint64_t argument)
{
	union nccl_state_args args = { .proxy_step = { argument } };

	if (player.record_fn)
		player.record_fn(handle, which, &args);
}

static void whole_call(void)
{
	struct nccl_event_descr api = { .type = EVENT_GROUP_API }, call = { .type = EVENT_COLL_API }, group = { .type = EVENT_GROUP };
	void *outer = start(&api), *inner;

	state(outer, 23, 0);
	stop(start(&call));
	state(outer, 24, 0);
	inner = start(&group);
	stop(inner);
	stop(outer);
}

static void run_kernels(void *operation)
{
	struct nccl_event_descr kernel = { .type = EVENT_KERNEL, .parent = operation };

	kernel.kernel.gpu_ns = 1000;
	for (int c = 0; c < CHANNELS; c++) {
		void *handle;

		kernel.kernel.channel = (uint8_t)c;
		handle = start(&kernel);
		state(handle, STATE_KERNEL_STOP, 2000);
		stop(handle);
	}
}

/* A batch of collectives enqueued, then run: kernels on each channel. Then a batch of which each is run before the next. */
static void enqueue_and_run(int round)
{
	static void *ops[BATCH];
	struct nccl_event_descr enqueue = { .type = EVENT_COLL, .coll = coll };
	double t[5];

	t[0] = now();
	for (int i = 0; i < BATCH; i++) {
		enqueue.coll.sequence++;
		stop(ops[i] = start(&enqueue));
	}
	t[1] = now();
	for (int i = 0; i < BATCH; i++)
		whole_call();
	t[2] = now();
	for (int i = 0; i < BATCH; i++)
		run_kernels(ops[i]);
	t[3] = now();
	for (int i = 0; i < BATCH; i++) {
		stop(ops[i] = start(&enqueue));
		run_kernels(ops[i]);
	}
	t[4] = now();
	samples[ALONE][round] = (t[4] - t[3]) / BATCH;
	samples[COLLECTIVE][round] = (t[1] - t[0]) / BATCH;
	samples[WHOLE_CALL][round] = (t[2] - t[1]) / BATCH + (t[1] - t[0]) / BATCH;
	samples[KERNEL][round] = (t[3] - t[2]) / (BATCH * CHANNELS);
}

static void play_step(void *op, int step, int send)
{
	struct nccl_event_descr descr = { .type = EVENT_PROXY_STEP, .parent = op, .proxy_step = { step } };
	void *handle = start(&descr);

	state(handle, send ? STATE_SEND_GPU_WAIT : STATE_RECV_WAIT, 0);
	state(handle, send ? STATE_SEND_PEER_WAIT : STATE_RECV_FLUSH_WAIT, 65536);
	state(handle, send ? STATE_SEND_WAIT : STATE_RECV_GPU_WAIT, 65536);
	stop(handle);
}

static void transfer(int round, int send)
{
	struct nccl_event_descr descr = { .type = EVENT_PROXY_OP, .proxy_op = { own, 0, 1, STEPS, 65536, send } };
	double steps = 0, begin = now(), at;

	for (int i = 0; i < BATCH; i++) {
		void *op = start(&descr);

		state(op, STATE_PROXY_OP_IN_PROGRESS, 0);
		at = now();
		for (int s = 0; s < STEPS; s++)
			play_step(op, s, send);
		steps += now() - at;
		stop(op);
	}
	samples[send ? SEND_STEP : RECV_STEP][round] = steps / (BATCH * STEPS);
	samples[PROXY_OP][round] = (now() - begin - steps) / BATCH;
}

static void repeat_wait(int round)
{
	struct nccl_event_descr descr = { .type = EVENT_PROXY_OP, .proxy_op = { own, 1, 1, STEPS, 65536, 1 } };
	void *op = start(&descr), *step;
	double begin;

	state(op, STATE_PROXY_OP_IN_PROGRESS, 0);
	descr = (struct nccl_event_descr){ .type = EVENT_PROXY_STEP, .parent = op };
	step = start(&descr);
	state(step, STATE_SEND_PEER_WAIT, 0);
	begin = now();
	for (int i = 0; i < BATCH * 8; i++)
		state(step, STATE_SEND_PEER_WAIT, 0);
	samples[REPEATED_WAIT][round] = (now() - begin) / (BATCH * 8);
	stop(step);
	stop(op);
}

static int ascending(const void *a, const void *b)
{
	return *(const double *)a > *(const double *)b ? 1 : -1;
}

int main(int argc, char **argv)
{
	int rounds = argc > 2 ? atoi(argv[2]) : 200;

	own = getpid();
	if (argc < 2 || rounds < 1 || rounds > MOST_ROUNDS)
		return 2;
	if (strcmp(argv[1], "none")) {
		player_load(&player, argv[1], 6);
		context = player_init(&player, 0xbe7c, "bench", 1, 2, 0);
	}
	for (int i = 0; i < rounds; i++) {
		enqueue_and_run(i);
		transfer(i, 0);
		transfer(i, 1);
		repeat_wait(i);
	}
	for (int kind = 0; kind < KINDS; kind++) {
		qsort(samples[kind], (size_t)rounds, sizeof(double), ascending);
		printf("%s %.1f %.1f\n", kinds[kind], samples[kind][rounds / 2], samples[kind][0]);
	}
	return 0;
}
