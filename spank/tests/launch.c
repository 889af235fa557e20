#include "../launch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "fake_spank.h"

/* The linker sends the plugin's calls here. */
static int fork_errno, socketpair_errno;
bool stop_child;
pid_t __real_fork(void);
pid_t __wrap_fork(void);
int __real_socketpair(int domain, int type, int protocol, int ends[2]);
int __wrap_socketpair(int domain, int type, int protocol, int ends[2]);

pid_t __wrap_fork(void)
{
	pid_t child;

	errno = fork_errno;
	child = fork_errno ? -1 : __real_fork();
	if (!child && stop_child)
		raise(SIGSTOP);
	return child;
}

int __wrap_socketpair(int domain, int type, int protocol, int ends[2])
{
	errno = socketpair_errno;
	return socketpair_errno ? -1 : __real_socketpair(domain, type, protocol, ends);
}

static int open_files(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;

	while (folder && readdir(folder))
		count++;
	if (folder)
		closedir(folder);
	return count;
}

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static const struct launch example = { .job = 12, .step = 3, .options = "observe", .srun = "srun", .ncclmon = "/ncclmon",
				       .delay_ms = 60000 };

static void expect_failure(const char *message)
{
	int before = open_files();

	CHECK(!launch_start(&example));
	CHECK_TEXT(fake_error, message);
	launch_end(true);
	CHECK(open_files() == before);
}

static void test_failures(void)
{
	fork_errno = EAGAIN;
	expect_failure("ncclmon: this step is not watched: Resource temporarily unavailable");
	fork_errno = 0;
	socketpair_errno = EMFILE;
	expect_failure("ncclmon: this step is not watched: Too many open files");
	socketpair_errno = 0;
}

/* A step that ends within the delay: whoever stands by leaves at once, and leaves nothing behind. */
static void test_short_step(void)
{
	int before = open_files();
	double started = now_s();

	CHECK(launch_start(&example));
	CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
	launch_end(true);
	CHECK(now_s() - started < 2);
	CHECK(open_files() == before);
	launch_end(true); /* once more: nothing to end */
}

/* What stands by holds none of our files: a pipe of ours is at its end as soon as we have closed it. */
static void test_files_are_let_go(void)
{
	int ends[2];
	char byte;

	CHECK(!pipe(ends));
	CHECK(launch_start(&example));
	close(ends[1]);
	CHECK(read(ends[0], &byte, 1) == 0);
	close(ends[0]);
	launch_end(false);
}

void test_launch(void)
{
	fake_reset();
	test_failures();
	test_short_step();
	test_files_are_let_go();
}
