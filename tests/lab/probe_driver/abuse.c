/* abuse PLUGIN CASE: what NCCL must not do but has done, and what a job may do to a plugin. Ends with status 0 if the plugin
 * survived it and kept errno. */
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "player.h"

#define GARBAGE ((void *)0xdeaddeaddeadbee0)

static const char *plugin;
static struct player player;
static void *context;
static pid_t own; /* asking for it is a system call */
static const struct nccl_coll coll = { .function = "AllReduce", .count = 100, .datatype = "ncclFloat32", .channels = 2,
				       .algorithm = "RING", .protocol = "SIMPLE" };

static void *join(uint64_t hash)
{
	return player_init(&player, hash, "abuse", 2, 4, 1);
}

static void *proxy_in_progress(void *operation, int channel, int peer, int send)
{
	void *op = player_proxy_op(&player, context, operation, (struct nccl_proxy_op){ own, (uint8_t)channel, peer, 4, 1, send });

	player_state(&player, op, STATE_PROXY_OP_IN_PROGRESS, 0);
	return op;
}

/* One send step as it should be. */
static void good_step(void *op, int number)
{
	void *step = player_step(&player, context, op, number);

	player_state(&player, step, STATE_SEND_GPU_WAIT, 0);
	player_state(&player, step, STATE_SEND_PEER_WAIT, 0);
	player_state(&player, step, STATE_SEND_WAIT, 10);
	player_stop(&player, step);
}

/* A whole operation as it should be, with `steps` steps. */
static void good_operation(int steps)
{
	void *operation = player_collective(&player, context, &coll), *kernels[2];
	void *op = proxy_in_progress(operation, 0, 2, 1);

	for (int c = 0; c < 2; c++)
		kernels[c] = player_kernel(&player, context, operation, (uint8_t)c, 1000);
	for (int s = 0; s < steps; s++)
		good_step(op, s);
	player_stop(&player, op);
	for (int c = 0; c < 2; c++)
		player_kernel_stop(&player, kernels[c], 5000);
}

static void twice(void)
{
	void *operation = player_collective(&player, context, &coll), *op, *step, *kernel;

	player_stop(&player, operation);
	op = proxy_in_progress(operation, 0, 2, 1);
	player_state(&player, op, STATE_PROXY_OP_IN_PROGRESS, 0);
	step = player_step(&player, context, op, 0);
	step = player_step(&player, context, op, 0);
	for (int i = 0; i < 3; i++) {
		player_state(&player, step, STATE_SEND_WAIT, 10);
		player_stop(&player, step);
	}
	player_stop(&player, op);
	player_stop(&player, op);
	player_stop(&player, step);
	player_step(&player, context, op, 1);
	kernel = player_kernel(&player, context, operation, 0, 100);
	kernel = player_kernel(&player, context, operation, 0, 100);
	for (int i = 0; i < 3; i++)
		player_kernel_stop(&player, kernel, 200);
	kernel = player_kernel(&player, context, operation, 1, 100);
	for (int i = 0; i < 3; i++)
		player_kernel_stop(&player, kernel, 200);
	player_kernel(&player, context, operation, 1, 100);
}

static void missing_stops(void)
{
	for (int i = 0; i < 3000; i++) {
		void *operation = player_collective(&player, context, &coll);
		void *op = proxy_in_progress(operation, i % 64, 2, i & 1);

		for (int s = 0; s < 20; s++)
			player_step(&player, context, op, s);
		player_kernel(&player, context, operation, 0, 1);
		if (i & 1)
			player_stop(&player, op);
	}
}

static void out_of_order(void)
{
	void *op = proxy_in_progress(player_collective(&player, context, &coll), 0, 2, 1), *step[8];

	for (int i = 0; i < 8; i++)
		step[i] = player_step(&player, context, op, i);
	for (int i = 7; i >= 0; i--) {
		player_stop(&player, step[i]);
		player_state(&player, step[i], STATE_SEND_WAIT, 10);
	}
	player_stop(&player, op);
}

static void foreign(void)
{
	struct nccl_event_descr descr = { .type = EVENT_PROXY_OP, .parent = GARBAGE, .proxy_op = { getpid() + 1, 0, 1, 4, 1, 1 } };
	void *handle = GARBAGE;

	player.start_fn(GARBAGE, &handle, &descr);
	if (handle)
		exit(3);
	descr.proxy_op.pid = getpid();
	player.start_fn(GARBAGE, &handle, &descr);
	player.start_fn(NULL, &handle, &descr);
	descr = (struct nccl_event_descr){ .type = EVENT_PROXY_STEP, .parent = NULL };
	player.start_fn(context, &handle, &descr);
	descr = (struct nccl_event_descr){ .type = EVENT_KERNEL, .parent = GARBAGE };
	player.start_fn(context, &handle, &descr);
	player.stop_fn(NULL);
	player.record_fn(NULL, STATE_SEND_WAIT, NULL);
	player.record_fn(GARBAGE, STATE_SEND_WAIT, NULL);
	player.stop_fn(GARBAGE);
	player.finalize_fn(GARBAGE);
	player.finalize_fn(NULL);
}

/* Random handles, many of them near real ones, and random types and states. */
static void invented(void)
{
	void *op = proxy_in_progress(player_collective(&player, context, &coll), 0, 2, 1);
	uint64_t real[] = { (uint64_t)context, (uint64_t)op, (uint64_t)player_step(&player, context, op, 0),
			    (uint64_t)player_collective(&player, context, &coll) };
	struct nccl_event_descr descr = { .proxy_op = { .pid = getpid() } };
	union nccl_state_args args = { .proxy_step = { 1 } };
	uint64_t seed = 88172645463325252ull;

	for (int i = 0; i < 1000000; i++) {
		uint64_t handle;
		void *out = NULL;

		seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
		handle = i & 1 ? real[i / 2 % 4] ^ 1ull << seed % 64 : (seed >> 8 | (uint64_t)real[0] >> 56 << 56);
		if (i % 8 < 4) {
			descr.parent = (void *)handle;
			descr.type = 1ull << seed % 17;
			if (descr.type & (EVENT_COLL | EVENT_P2P))
				continue; /* their texts are looked at */
			player.start_fn(i & 16 ? context : (void *)handle, &out, &descr);
		} else if (i % 8 < 6) {
			player.record_fn((void *)handle, (int)(seed >> 32) % 40 - 5, i & 32 ? &args : NULL);
		} else {
			player.stop_fn((void *)handle);
		}
	}
	descr.type = 0xffffffffffffffffull;
	player.start_fn(context, (void **)&op, &descr);
}

static void communicators(void)
{
	static void *contexts[1000];

	for (int i = 0; i < 1000; i++)
		contexts[i] = join((uint64_t)i + 1);
	for (int i = 0; i < 1000; i++) {
		context = contexts[i];
		good_operation(3);
	}
	for (int i = 0; i < 1000; i++)
		player_finalize(&player, contexts[i]);
	for (int i = 0; i < 1000; i++) {
		context = contexts[i];
		good_operation(3);
	}
	context = join(5000);
	good_operation(3);
}

static void million_steps(void)
{
	for (int i = 0; i < 1000; i++)
		good_operation(1000);
}

/* 5,000 operations that the GPU never begins, after some that it did. */
static void far_ahead(void)
{
	good_operation(1);
	for (int i = 0; i < 5000; i++)
		player_collective(&player, context, &coll);
}

/* An all-to-all: 64 peers at once on one channel. */
static void many_peers(void)
{
	void *ops[64], *steps[64];
	void *operation = player_collective(&player, context, &coll);

	for (int i = 0; i < 64; i++) {
		ops[i] = proxy_in_progress(operation, 0, i, 1);
		steps[i] = player_step(&player, context, ops[i], 0);
		player_state(&player, steps[i], STATE_SEND_WAIT, 10);
	}
	for (int i = 0; i < 64; i++)
		player_stop(&player, steps[i]);
	for (int i = 0; i < 64; i++)
		player_stop(&player, ops[i]);
}

static void reload(void)
{
	for (int i = 0; i < 20; i++) {
		good_operation(10);
		player_finalize(&player, context);
		good_operation(10);
		dlclose(player.library);
		memset(&player, 0, sizeof(player));
		player_load(&player, plugin, 0);
		context = join((uint64_t)i);
	}
	good_operation(10);
}

/* A child goes on with the parent's handles, then makes a communicator of its own. */
static void forked(void)
{
	void *operation = player_collective(&player, context, &coll), *op = proxy_in_progress(operation, 0, 2, 1);
	int status;
	pid_t child = fork();

	if (!child) {
		own = getpid();
		good_step(op, 0);
		good_operation(10);
		player_finalize(&player, context);
		context = join(99);
		good_operation(10);
		_exit(0);
	}
	waitpid(child, &status, 0);
	if (status)
		exit(4);
	player_stop(&player, op);
	for (int c = 0; c < 2; c++)
		player_kernel_stop(&player, player_kernel(&player, context, operation, (uint8_t)c, 1), 2);
}

static void *enqueues(void *unused)
{
	(void)unused;
	for (int i = 0; i < 20000; i++)
		player_collective(&player, context, &coll);
	return NULL;
}

static void *runs(void *unused)
{
	(void)unused;
	for (int i = 0; i < 2000; i++)
		good_operation(8);
	return NULL;
}

static void *joins(void *unused)
{
	struct player other = player;

	(void)unused;
	for (int i = 0; i < 50; i++)
		player_finalize(&other, player_init(&other, (uint64_t)i, "abuse", 2, 4, 1));
	return NULL;
}

static void threads(void)
{
	pthread_t t[8];
	void *(*const what[8])(void *) = { enqueues, enqueues, runs, joins, joins, joins, joins, joins };

	for (int i = 0; i < 8; i++)
		pthread_create(&t[i], NULL, what[i], NULL);
	for (int i = 0; i < 8; i++)
		pthread_join(t[i], NULL);
}

/* From here on, any system call but write and exit kills the process. (Seccomp's strict mode would take the clock away, too.) */
static void forbid_system_calls(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(filter) / sizeof(*filter), filter };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		exit(5);
}

static void no_system_call(void)
{
	good_operation(10);
	forbid_system_calls();
	for (int i = 0; i < 3000; i++)
		good_operation(10);
	twice();
	missing_stops();
	out_of_order();
	many_peers();
	far_ahead();
	syscall(SYS_write, 1, "no system call\n", 15);
	syscall(SYS_exit, 0);
}

static void nothing(void)
{
	good_operation(2);
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*run)(void); } cases[] = {
		{ "twice", twice }, { "missing_stops", missing_stops }, { "out_of_order", out_of_order }, { "foreign", foreign },
		{ "invented", invented }, { "communicators", communicators }, { "million_steps", million_steps },
		{ "far_ahead", far_ahead }, { "many_peers", many_peers }, { "reload", reload }, { "forked", forked },
		{ "threads", threads }, { "no_system_call", no_system_call }, { "nothing", nothing },
	};

	if (argc < 3)
		return 2;
	plugin = argv[1];
	own = getpid();
	player_load(&player, plugin, 0);
	setenv("NCCLMON_PROBE_MASK", "0x5e", 0); /* kernel events too, whatever library calls */
	errno = 4242;
	context = join(0xabc);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		if (strcmp(cases[i].name, argv[2]))
			continue;
		cases[i].run();
		if (!strcmp(argv[2], "nothing") || !strcmp(argv[2], "twice"))
			return errno == 4242 ? 0 : 6;
		return 0;
	}
	return 2;
}
