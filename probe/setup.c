/* Init: the file in shared memory, the private memory, a frame for each communicator. Everything that allocates, locks or calls
 * the system is here. Whatever fails leaves the job as it is, without frames. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "probe.h"
#include "version.h"

#define DEFAULT_FRAMES 128
#ifndef REUSE_AFTER_NS /* events of a finalised communicator may still come for a while */
#define REUSE_AFTER_NS (60ull * 1000000000)
#endif

struct process *process;

struct request {
	int interface;
	const void *caller;
	nccl_log log;
};

#define LOG_INFO 3
#define LOG_INIT 1
#define say(request, ...)                                                                        \
	do {                                                                                     \
		if ((request)->log)                                                              \
			(request)->log(LOG_INFO, LOG_INIT, "ncclmon", __LINE__, "ncclmon probe: " __VA_ARGS__); \
	} while (0)

static long env_number(const char *name, long otherwise)
{
	const char *text = getenv(name);
	char *end;
	long value;

	if (!text || !*text)
		return otherwise;
	value = strtol(text, &end, 0);
	return *end ? otherwise : value;
}

static void copy_text(uint8_t *to, size_t size, const char *from)
{
	for (size_t i = 0; i + 1 < size && from && from[i]; i++)
		to[i] = (uint8_t)from[i];
}

/* The step's folder, made if it is not there; only ours, and closed to others. Through the system call because the library
 * function's symbol is newer than the oldest C library that we serve. */
static int open_folder(const char *path)
{
	struct stat st;
	int fd;

	if (mkdir(path, 0700) && errno != EEXIST)
		return -1;
	fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd >= 0 && (syscall(SYS_fstat, fd, &st) || st.st_uid != geteuid() || st.st_mode & 022)) {
		close(fd);
		errno = EPERM;
		return -1;
	}
	return fd;
}

/* A new file in the folder: PID.frames, or PID-1.frames … where an earlier process or another container had the number. Its
 * memory is taken now: a full /dev/shm must be found out here and not by a signal in the job. */
static int make_file(int folder, size_t size)
{
	struct rlimit limit;
	char name[64];
	int fd = -1, rc;

	if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur < size) {
		errno = EFBIG; /* found out otherwise, it would be a signal */
		return -1;
	}
	for (int i = 0; fd < 0 && i < 64; i++) {
		snprintf(name, sizeof(name), i ? "%d-%d.frames" : "%d.frames", (int)getpid(), i);
		fd = openat(folder, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
		if (fd < 0 && errno != EEXIST)
			return -1;
	}
	if (fd < 0)
		return -1;
	rc = posix_fallocate(fd, 0, (off_t)size);
	if (rc) {
		unlinkat(folder, name, 0);
		close(fd);
		errno = rc;
		return -1;
	}
	return fd;
}

static void *map_file(const char *path, size_t size)
{
	int folder = open_folder(path), fd, error;
	void *memory = MAP_FAILED;

	if (folder < 0)
		return NULL;
	fd = make_file(folder, size);
	if (fd >= 0)
		memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	error = errno;
	if (fd >= 0)
		close(fd);
	close(folder);
	errno = error;
	return memory == MAP_FAILED ? NULL : memory;
}

/* Private memory, the same place for good. A forked child finds it zero and so ignores NCCL's calls: the file is the parent's. */
static struct process *map_private(uint32_t count)
{
	size_t size = sizeof(struct process) + count * sizeof(struct member);
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (memory == MAP_FAILED)
		return NULL;
	if (madvise(memory, size, MADV_WIPEONFORK)) {
		munmap(memory, size);
		return NULL;
	}
	return memory;
}

static uint64_t start_ticks(void)
{
	char text[1024], *at;
	int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return 0;
	text[n] = 0;
	at = strrchr(text, ')'); /* the name before it may hold anything */
	for (int field = 2; at && field < 22; field++)
		at = strchr(at + 1, ' ');
	return at ? strtoull(at, NULL, 10) : 0;
}

static uint64_t pid_namespace(void)
{
	char text[64];
	ssize_t n = readlink("/proc/self/ns/pid", text, sizeof(text) - 1);

	text[n > 0 ? n : 0] = 0;
	return n > 5 ? strtoull(text + 5, NULL, 10) : 0; /* "pid:[4026531836]" */
}

static void fill_header(struct ncclmon_header *h, uint32_t frames, const struct request *request)
{
	char host[64] = "";

	gethostname(host, sizeof(host) - 1);
	h->abi = NCCLMON_ABI;
	h->header_bytes = NCCLMON_HEADER_BYTES;
	h->frame_bytes = sizeof(struct ncclmon_frame);
	h->frames = (uint16_t)frames;
	h->pid = (uint32_t)getpid();
	h->uid = geteuid();
	h->start_ticks = start_ticks();
	h->pid_namespace = pid_namespace();
	h->monotonic_ns = clock_ns(CLOCK_MONOTONIC);
	h->realtime_ns = clock_ns(CLOCK_REALTIME);
	h->job = (int32_t)env_number("SLURM_JOB_ID", -1);
	h->step = (int32_t)env_number("SLURM_STEP_ID", -1);
	h->task = (int32_t)env_number("SLURM_PROCID", -1);
	h->local_task = (int32_t)env_number("SLURM_LOCALID", -1);
	h->rank = (int32_t)env_number("RANK", h->task);
	h->interface = (uint32_t)request->interface;
	h->nccl_version = (uint32_t)nccl_version(request->caller, request->interface);
	h->mask = (uint32_t)env_number("NCCLMON_PROBE_MASK", nccl_mask((int)h->nccl_version));
	copy_text(h->host, sizeof(h->host), getenv("SLURMD_NODENAME") ? getenv("SLURMD_NODENAME") : host);
	copy_text(h->devices, sizeof(h->devices), getenv("CUDA_VISIBLE_DEVICES"));
	__atomic_store_n(&h->magic, NCCLMON_MAGIC, __ATOMIC_RELEASE);
}

/* Some clock sources need the kernel for exact time; there the coarse clock has to do. */
static bool clock_is_slow(void)
{
	uint64_t start = clock_ns(CLOCK_MONOTONIC);

	for (int i = 0; i < 100; i++)
		clock_ns(CLOCK_MONOTONIC);
	return clock_ns(CLOCK_MONOTONIC) - start > 100 * 150;
}

static bool setup_process(const struct request *request)
{
	static long room; /* communicators that the private memory is for */
	const char *path = getenv("NCCLMON_PROBE_DIR");
	long count = env_number("NCCLMON_PROBE_COMMS", DEFAULT_FRAMES);
	struct process *p;

	count = count < 2 ? 2 : count > MOST_FRAMES ? MOST_FRAMES : count;
	if (!path || *path != '/') {
		say(request, "NCCLMON_PROBE_DIR is not set to a folder: no frames");
		return false;
	}
	p = process ? process : map_private((uint32_t)count);
	if (!p)
		return false;
	if (!process)
		room = count;
	count = count < room ? count : room;
	p->header = map_file(path, NCCLMON_HEADER_BYTES + (size_t)count * sizeof(struct ncclmon_frame));
	if (!p->header) {
		say(request, "no frames in %s: %s", path, strerror(errno));
		process = p;
		return false;
	}
	fill_header(p->header, (uint32_t)count, request);
	p->frames = (struct ncclmon_frame *)((char *)p->header + NCCLMON_HEADER_BYTES);
	p->count = (uint32_t)count;
	p->mask = (int)p->header->mask;
	p->coarse = clock_is_slow();
	p->pid = getpid();
	__atomic_store_n(&p->live, true, __ATOMIC_RELEASE);
	__atomic_store_n(&process, p, __ATOMIC_RELEASE);
	say(request, "frames in %s, events %#x", path, (unsigned)p->mask);
	return true;
}

/* A frame never used, else one long finalised, else frame 0, which such communicators share. */
static struct member *claim_member(void)
{
	struct ncclmon_header *h = process->header;
	uint64_t now = clock_ns(CLOCK_MONOTONIC);

	if (!h->used)
		store(&h->used, 1); /* frame 0 */
	if (h->used < process->count) {
		store(&h->used, h->used + 1);
		return &process->member[h->used - 1];
	}
	for (uint32_t i = 1; i < process->count; i++) {
		struct member *m = &process->member[i];

		if (!__atomic_load_n(&m->live, __ATOMIC_ACQUIRE) && now - load(&m->finalised_ns) > REUSE_AFTER_NS)
			return m;
	}
	store(&h->shared, h->shared + 1);
	return &process->member[0];
}

static void fill_frame(struct member *m, uint64_t hash, const char *name, int nodes, int ranks, int rank)
{
	struct ncclmon_frame *f = m->frame;

	memset(f, 0, sizeof(*f));
	f->generation = m->generation;
	f->communicator = hash;
	f->rank = (uint32_t)rank;
	f->size = (uint32_t)ranks;
	f->nodes = (uint32_t)nodes;
	f->init_ns = clock_ns(CLOCK_MONOTONIC);
	f->flags = m->kernel_events ? FLAG_KERNEL_EVENTS : 0;
	copy_text(f->name, sizeof(f->name), name);
	for (int i = 0; i < NCCLMON_CHANNELS; i++)
		f->channel[i].send = f->channel[i].recv = NCCLMON_LINK(0, NO_PEER, WAIT_NONE, 0, 0);
	f->magic = (uint32_t)NCCLMON_MAGIC;
	__atomic_store_n(&f->state, m->shared ? FRAME_SHARED : FRAME_LIVE, __ATOMIC_RELEASE);
}

static struct member *new_member(uint64_t hash, const char *name, int nodes, int ranks, int rank)
{
	struct member *m = claim_member();
	uint16_t generation = m->generation + 1;

	if (m == &process->member[0] && m->live)
		return m;
	if (m->frame)
		store(&m->frame->state, FRAME_FREE);
	memset(m, 0, sizeof(*m));
	memset(&process->way[member_index(m) * LINKS * WAYS], 0, sizeof(struct way) * LINKS * WAYS);
	m->generation = generation;
	m->op_handle = HANDLE(KIND_OP, member_index(m), (uint64_t)(generation & 0x7ff) << 32);
	m->frame = &process->frames[member_index(m)];
	m->shared = m == &process->member[0];
	m->kernel_events = process->mask & EVENT_KERNEL;
	fill_frame(m, hash, name, nodes, ranks, rank);
	__atomic_store_n(&m->live, true, __ATOMIC_RELEASE);
	return m;
}

/* One thread at a time; one that cannot get in within a second goes without (the holder may have been lost in a fork). */
static bool enter(int *gate)
{
	struct timespec pause = { 0, 1000000 };

	for (int i = 0; i < 1000; i++) {
		int open = 0;

		if (__atomic_compare_exchange_n(gate, &open, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			return true;
		nanosleep(&pause, NULL);
	}
	return false;
}

struct member *setup_member(uint64_t hash, const char *name, int nodes, int ranks, int rank, int interface, const void *caller,
			    nccl_log log)
{
	static int gate;
	static pid_t failed; /* the process in which it failed: not tried again */
	struct request request = { interface, caller, log };
	struct member *m = NULL;

	if (!enter(&gate))
		return NULL;
	if (failed != getpid()) {
		if ((process && process->live) || setup_process(&request))
			m = new_member(hash, name, nodes, ranks, rank);
		else
			failed = getpid();
	}
	__atomic_store_n(&gate, 0, __ATOMIC_RELEASE);
	return m;
}

void setup_release(struct member *m)
{
	if (m->shared)
		return;
	store(&m->finalised_ns, clock_ns(CLOCK_MONOTONIC));
	store(&m->frame->state, FRAME_FINALISED);
	__atomic_store_n(&m->live, false, __ATOMIC_RELEASE);
}
