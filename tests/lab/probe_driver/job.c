/* job PLUGIN [key=value…]: a job whose ranks are processes. Each plays NCCL to the plugin with a calling thread and a proxy thread,
 * over connections with credits, so that back-pressure and starvation come about as they do in NCCL.
 *
 *   ranks=4 channels=2 operations=20 steps=16 tree=0 interface=0 period_us=1000 seconds=3
 *   fault=none|not_entered|late|other_count|gpu_stall|gpu_slow|link_stop|proxy_frozen|stopped|killed  rank=1 at=5
 *
 * The fault strikes at operation `at` of rank `rank`. The job prints "done R" for each rank that finished and ends after
 * `seconds` at the latest; the frames stay. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "model.h"
#include "player.h"

#define MOST_OPERATIONS 4096

static const char *plugin, *fault = "none";
static int faulty = 1, at = 5, period_us = 1000, seconds = 3, interface;
static struct world *world;

static int me;
static struct player player;
static void *context;
static _Atomic int enqueued;
static void *operations[MOST_OPERATIONS];
static struct link links[MOST_CHANNELS][MOST_LINKS];
static void *kernels[MOST_CHANNELS];
static int link_count;

static bool struck(const char *which, int operation)
{
	return me == faulty && operation >= at && !strcmp(fault, which);
}

static uint64_t gpu_clock(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec + 777;
}

static void *calls(void *unused)
{
	struct nccl_coll coll = { .function = "AllReduce", .count = 1 << 20, .datatype = "ncclFloat32",
				  .channels = (uint8_t)world->channels, .algorithm = world->tree ? "TREE" : "RING", .protocol = "SIMPLE" };

	(void)unused;
	for (int i = 0; i < world->operations; i++) {
		if (struck("not_entered", i))
			return NULL;
		if (struck("late", i) && i == at)
			usleep(500000);
		if (struck("other_count", i))
			coll.count = 1 << 10;
		if (struck("stopped", i))
			raise(SIGSTOP);
		if (struck("killed", i))
			raise(SIGKILL);
		coll.sequence = (uint64_t)i;
		operations[i] = player_collective(&player, context, &coll);
		atomic_store(&enqueued, i + 1);
		usleep((useconds_t)period_us);
	}
	return NULL;
}

static struct edge *edge(const struct link *link, int channel)
{
	return link->sends ? &world->edge[me][link->peer][channel] : &world->edge[link->peer][me][channel];
}

static void begin(int operation, int channel)
{
	for (int i = 0; i < link_count; i++) {
		struct link *link = &links[channel][i];
		struct nccl_proxy_op op = { getpid(), (uint8_t)channel, link->peer, model_steps(world), 1 << 20, link->sends };

		link->posted = link->moved = link->done = link->produced = 0;
		link->handle = player_proxy_op(&player, context, operations[operation], op);
		player_state(&player, link->handle, STATE_PROXY_OP_IN_PROGRESS, 0);
	}
}

static void end(int channel)
{
	for (int i = 0; i < link_count; i++)
		player_stop(&player, links[channel][i].handle);
}

static void post(struct link *link, int channel)
{
	while (link->posted < model_steps(world) && link->posted < link->done + CREDITS) {
		void *step = player_step(&player, context, link->handle, link->posted);

		player_state(&player, step, link->sends ? STATE_SEND_GPU_WAIT : STATE_RECV_WAIT, 0);
		link->step[link->posted++ % CREDITS] = step;
		if (!link->sends)
			atomic_fetch_add(&edge(link, channel)->granted, 1);
	}
}

/* One look at a sending link: hand over what the GPU has produced and the peer has a buffer for. */
static void progress_send(struct link *link, int channel, int operation)
{
	uint64_t base = (uint64_t)operation * (uint64_t)model_steps(world);
	struct edge *e = edge(link, channel);

	if (link->moved < link->produced && link->moved < link->posted) {
		void *step = link->step[link->moved % CREDITS];

		player_state(&player, step, STATE_SEND_PEER_WAIT, 0);
		if (atomic_load(&e->granted) > base + (uint64_t)link->moved) {
			player_state(&player, step, STATE_SEND_WAIT, 65536);
			link->moved++;
		}
	}
	if (link->done < link->moved && !struck("link_stop", operation)) {
		atomic_fetch_add(&e->sent, 1);
		player_stop(&player, link->step[link->done++ % CREDITS]);
	}
}

/* One look at a receiving link: what has arrived is consumed at once if the GPU runs. */
static void progress_recv(struct link *link, int channel, int operation, bool gpu_runs)
{
	uint64_t base = (uint64_t)operation * (uint64_t)model_steps(world);

	if (link->moved < link->posted && atomic_load(&edge(link, channel)->sent) > base + (uint64_t)link->moved) {
		void *step = link->step[link->moved++ % CREDITS];

		player_state(&player, step, STATE_RECV_FLUSH_WAIT, 65536);
		player_state(&player, step, STATE_RECV_GPU_WAIT, 65536);
	}
	if (link->done < link->moved && gpu_runs)
		player_stop(&player, link->step[link->done++ % CREDITS]);
}

/* The GPU produces at most one step of each link at a time. */
static void run_gpu(int channel, int operation)
{
	static int slow;

	if (struck("gpu_slow", operation) && slow++ % 50)
		return;
	for (int i = 0; i < link_count; i++) {
		struct link *link = &links[channel][i];

		if (link->sends && link->produced < link->posted && model_ready(world, links[channel], link))
			link->produced++;
	}
}

/* One look at a channel; true once its part of the operation is over. */
static bool progress(int channel, int operation)
{
	bool started = kernels[channel] != NULL || !(player.mask & EVENT_KERNEL), over = true;

	if (started)
		run_gpu(channel, operation);
	for (int i = 0; i < link_count; i++) {
		struct link *link = &links[channel][i];

		post(link, channel);
		if (link->sends)
			progress_send(link, channel, operation);
		else
			progress_recv(link, channel, operation, started);
		over = over && link->done == model_steps(world);
	}
	return over;
}

static void *proxy(void *unused)
{
	(void)unused;
	for (int i = 0; i < world->operations; i++) {
		uint32_t running = (1u << world->channels) - 1;

		while (atomic_load(&enqueued) <= i || struck("proxy_frozen", i))
			usleep(200);
		for (int c = 0; c < world->channels; c++)
			begin(i, c);
		for (int c = 0; c < world->channels && !struck("gpu_stall", i); c++)
			kernels[c] = player_kernel(&player, context, operations[i], (uint8_t)c, gpu_clock());
		while (running) {
			for (int c = 0; c < world->channels; c++) {
				if (!(running & 1u << c) || !progress(c, i))
					continue;
				running &= ~(1u << c);
				end(c);
				player_kernel_stop(&player, kernels[c], gpu_clock());
				kernels[c] = NULL;
			}
			usleep(50);
		}
	}
	return NULL;
}

static void run_rank(int rank)
{
	pthread_t caller, progressing;
	char task[16];

	me = rank;
	snprintf(task, sizeof(task), "%d", rank);
	setenv("SLURM_PROCID", task, 1);
	alarm((unsigned)seconds); /* ends the process whatever hangs */
	player_load(&player, plugin, interface);
	context = player_init(&player, 0x5eed5eed5eed5eedull, "world", world->ranks, world->ranks, rank);
	for (int c = 0; c < world->channels; c++)
		link_count = model_links(world, rank, links[c]);
	pthread_create(&caller, NULL, calls, NULL);
	pthread_create(&progressing, NULL, proxy, NULL);
	pthread_join(caller, NULL);
	pthread_join(progressing, NULL);
	printf("done %d\n", rank);
	exit(0);
}

static int number(const char *argument, const char *key, int otherwise)
{
	size_t length = strlen(key);

	return !strncmp(argument, key, length) && argument[length] == '=' ? atoi(argument + length + 1) : otherwise;
}

static void options(int argc, char **argv)
{
	for (int i = 2; i < argc; i++) {
		world->ranks = number(argv[i], "ranks", world->ranks);
		world->channels = number(argv[i], "channels", world->channels);
		world->operations = number(argv[i], "operations", world->operations);
		world->steps = number(argv[i], "steps", world->steps);
		world->tree = number(argv[i], "tree", world->tree);
		interface = number(argv[i], "interface", interface);
		period_us = number(argv[i], "period_us", period_us);
		seconds = number(argv[i], "seconds", seconds);
		faulty = number(argv[i], "rank", faulty);
		at = number(argv[i], "at", at);
		if (!strncmp(argv[i], "fault=", 6))
			fault = argv[i] + 6;
	}
}

int main(int argc, char **argv)
{
	pid_t children[MOST_RANKS];
	int status, failed = 0;

	world = mmap(NULL, sizeof(*world), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (argc < 2 || world == MAP_FAILED)
		return 2;
	plugin = argv[1];
	*world = (struct world){ .ranks = 4, .channels = 2, .steps = 16, .operations = 20 };
	options(argc, argv);
	if (world->ranks < 2 || world->ranks > MOST_RANKS || world->channels > MOST_CHANNELS || world->operations > MOST_OPERATIONS)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int r = 0; r < world->ranks; r++) {
		children[r] = fork();
		if (!children[r])
			run_rank(r);
	}
	sleep((unsigned)seconds / 2);
	for (int r = 0; r < world->ranks; r++) {
		if (!strcmp(fault, "stopped") && r == faulty) {
			sleep((unsigned)(seconds - seconds / 2)); /* an alarm does not end a stopped process */
			kill(children[r], SIGKILL);
		}
		waitpid(children[r], &status, 0);
		failed |= WIFEXITED(status) && WEXITSTATUS(status);
	}
	return failed;
}
