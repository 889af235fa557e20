/* replay PLUGIN TRACE [INTERFACE]: plays an event sequence that was recorded from NCCL, each recorded thread on one of its own
 * and all in the recorded order, then says "played" and waits for the end of its input, so that the frames can be read. With REPLAY_FINALIZE set, the communicator is finalised at the end. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "player.h"

#define MOST_LINES 4096
#define MOST_THREADS 8

static struct player player;
static void *context;
static char lines[MOST_LINES][256];
static int count, cursor, tids[MOST_THREADS], threads;
static void *handles[MOST_LINES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn = PTHREAD_COND_INITIALIZER;

/* The number after `key` in the line, `base` 10 or 16; -1 where there is none. */
static long long number(const char *line, const char *key, int base)
{
	const char *at = strstr(line, key);

	return at ? (long long)strtoull(at + strlen(key), NULL, base) : -1;
}

static const char *known(const char *line, const char *const *names)
{
	for (; *names; names++) {
		const char *at = strstr(line, *names);
		char end = at ? at[strlen(*names)] : 'x';

		if (end == ' ' || end == '\n')
			return *names;
	}
	return NULL;
}

static void *handle_of(const char *line, const char *key)
{
	long long id = number(line, key, 10);

	return id < 0 || id >= MOST_LINES ? NULL : handles[id];
}

static void fill_coll(struct nccl_coll *coll, const char *line)
{
	static const char *const functions[] = { "AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", NULL };
	static const char *const types[] = { "ncclFloat32", "ncclInt8", NULL };
	static const char *const algorithms[] = { "RING", "TREE", NULL };
	static const char *const protocols[] = { "SIMPLE", "LL", "LL128", NULL };

	*coll = (struct nccl_coll){ .sequence = (uint64_t)number(line, "seq=", 10), .function = known(line, functions),
				    .count = (size_t)number(line, "count=", 10), .datatype = known(line, types),
				    .channels = (uint8_t)number(line, "nCh=", 10), .algorithm = known(line, algorithms),
				    .protocol = known(line, protocols) };
}

static void play_start(const char *line)
{
	static const struct { const char *name; int type; } events[] = {
		{ " GroupApi", EVENT_GROUP_API }, { " CollApi", EVENT_COLL_API }, { " Group\n", EVENT_GROUP },
		{ " Coll ", EVENT_COLL }, { " ProxyOp", EVENT_PROXY_OP }, { " ProxyStep", EVENT_PROXY_STEP },
		{ " KernelCh", EVENT_KERNEL }, { " KernelLaunch", EVENT_KERNEL_LAUNCH },
	};
	struct nccl_event_descr descr = { .parent = handle_of(line, "parent=#") };

	for (size_t i = 0; i < sizeof(events) / sizeof(*events); i++) {
		if (strstr(line, events[i].name))
			descr.type = (uint64_t)events[i].type;
	}
	if (descr.type == EVENT_COLL)
		fill_coll(&descr.coll, line);
	if (descr.type == EVENT_PROXY_OP)
		descr.proxy_op = (struct nccl_proxy_op){ getpid(), (uint8_t)number(line, "ch=", 10), (int)number(line, "peer=", 10),
							 (int)number(line, "nSteps=", 10), (int)number(line, "chunk=", 10),
							 (int)number(line, "isSend=", 10) };
	if (descr.type == EVENT_PROXY_STEP)
		descr.proxy_step.step = (int)number(line, "step=", 10);
	if (descr.type == EVENT_KERNEL) {
		descr.kernel.channel = (uint8_t)number(line, "ch=", 10);
		descr.kernel.gpu_ns = (uint64_t)number(line, "ptimer=", 10);
	}
	handles[number(line, "START #", 10)] = player_start(&player, context, &descr);
}

static void play(const char *line)
{
	long long argument;

	if (strstr(line, " INIT ")) {
		context = player_init(&player, (uint64_t)number(line, "comm=", 16), NULL, (int)number(line, "nNodes=", 10),
				      (int)number(line, "nRanks=", 10), (int)number(line, " rank=", 10));
	} else if (strstr(line, " START ")) {
		play_start(line);
	} else if (strstr(line, " STATE ")) {
		argument = number(line, "transSize=", 10);
		player_state(&player, handle_of(line, "STATE #"), (int)number(line, "state=", 10),
			     argument < 0 ? 0 : (uint64_t)argument);
	} else if (strstr(line, " STOP ")) {
		player_stop(&player, handle_of(line, "STOP  #"));
	}
}

static void *thread(void *argument)
{
	int tid = *(int *)argument;

	pthread_mutex_lock(&lock);
	while (cursor < count) {
		if (number(lines[cursor], "tid=", 10) != tid) {
			pthread_cond_wait(&turn, &lock);
			continue;
		}
		play(lines[cursor++]);
		if (cursor == count || number(lines[cursor], "tid=", 10) != tid)
			pthread_cond_broadcast(&turn);
	}
	pthread_mutex_unlock(&lock);
	return NULL;
}

static void read_trace(const char *path)
{
	FILE *file = fopen(path, "r");
	int tid, i;

	if (!file) {
		perror(path);
		exit(2);
	}
	while (count < MOST_LINES && fgets(lines[count], sizeof(lines[0]), file)) {
		tid = (int)number(lines[count++], "tid=", 10);
		for (i = 0; i < threads && tids[i] != tid; i++)
			;
		if (i == threads && threads < MOST_THREADS)
			tids[threads++] = tid;
	}
	fclose(file);
}

int main(int argc, char **argv)
{
	pthread_t workers[MOST_THREADS];
	char byte;

	if (argc < 3) {
		fprintf(stderr, "use: replay PLUGIN TRACE [INTERFACE]\n");
		return 2;
	}
	read_trace(argv[2]);
	player_load(&player, argv[1], argc > 3 ? atoi(argv[3]) : 0);
	for (int i = 0; i < threads; i++)
		pthread_create(&workers[i], NULL, thread, &tids[i]);
	for (int i = 0; i < threads; i++)
		pthread_join(workers[i], NULL);
	if (getenv("REPLAY_FINALIZE"))
		player_finalize(&player, context);
	puts("played");
	fflush(stdout);
	while (read(0, &byte, 1) > 0)
		;
	return 0;
}
