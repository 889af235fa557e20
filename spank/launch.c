/* One socket pair ties both sides together. Our end closes however srun dies, which the monitor step reads as the end of
 * its standard input. Their end is held by all processes of the monitor step here, and by nobody else, so it hangs up
 * when the last of them is gone: no pid to watch, no signal, no polling.
 *
 * srun has threads by now, so a child may call async-signal-safe functions only until it has become another program. */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common.h"

#define STEP_PROGRAM PREFIX "/lib/ncclmon/ncclmon-step"

static int line = -1; /* our end */

static void close_from(int first)
{
	long fd, limit;

#ifdef SYS_close_range
	if (!syscall(SYS_close_range, (unsigned)first, ~0U, 0))
		return;
#endif
	limit = sysconf(_SC_OPEN_MAX);
	for (fd = first; fd < limit; fd++)
		close((int)fd);
}

/* srun blocks the signals that it handles; whoever inherits that could not be ended. */
static void reset_signals(void)
{
	struct sigaction action = { .sa_handler = SIG_DFL };
	sigset_t none;
	int number;

	for (number = 1; number < NSIG; number++)
		sigaction(number, &action, NULL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Leaves nothing of srun's open but its stderr, for one message at most. Above all not the pipe by which srun's own
 * clean-up process sees srun die. */
static void reset_files(int their_end)
{
	int null = open("/dev/null", O_RDWR);

	if (null < 0)
		_exit(1);
	dup2(null, STDOUT_FILENO);
	if (fcntl(STDERR_FILENO, F_GETFD) < 0)
		dup2(null, STDERR_FILENO);
	dup2(their_end, STDIN_FILENO);
	close_from(3);
}

/* Nothing is ever written to the line: readable means that srun is gone. */
static void stand_by(int delay_ms)
{
	struct pollfd ended = { .fd = STDIN_FILENO, .events = POLLIN };

	if (poll(&ended, 1, delay_ms) > 0)
		_exit(0);
}

static void become_step_program(int their_end, int delay_ms, char *const arguments[])
{
	static const char failed[] = "ncclmon: this step is not watched: cannot run " STEP_PROGRAM "\n";

	reset_signals();
	reset_files(their_end);
	stand_by(delay_ms);
	execve(STEP_PROGRAM, arguments, environ);
	if (write(STDERR_FILENO, failed, sizeof failed - 1) < 0)
		_exit(126);
	_exit(127);
}

/* By way of a short-lived child in a session of its own: Ctrl-C does not reach it, and srun gets no zombie to keep. */
static bool fork_away(int their_end, int delay_ms, char *const arguments[])
{
	int status = 0;
	pid_t child = fork();

	if (child < 0)
		return false;
	if (child == 0) {
		setsid();
		child = fork();
		if (child == 0)
			become_step_program(their_end, delay_ms, arguments);
		_exit(child < 0);
	}
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	errno = EAGAIN; /* what the child's own fork met, if it failed */
	return status == 0;
}

/* Both ends lie above the standard files, even where srun was started with those closed. */
static bool make_line(int ends[2])
{
	int low[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, low))
		return false;
	ends[0] = fcntl(low[0], F_DUPFD_CLOEXEC, 3);
	ends[1] = fcntl(low[1], F_DUPFD_CLOEXEC, 3);
	close(low[0]);
	close(low[1]);
	return ends[0] >= 0 && ends[1] >= 0;
}

bool launch_start(const struct launch *launch)
{
	char job[16], step[16], message[MESSAGE_MAX];
	char *const arguments[] = { "ncclmon-step", job, step, (char *)launch->options, (char *)launch->srun,
				    (char *)launch->ncclmon, (char *)launch->config, NULL };
	int ends[2] = { -1, -1 };
	bool started;

	snprintf(job, sizeof job, "%" PRIu32, launch->job);
	snprintf(step, sizeof step, "%" PRIu32, launch->step);
	started = make_line(ends) && fork_away(ends[1], launch->delay_ms, arguments);
	if (!started) {
		snprintf(message, sizeof message, "this step is not watched: %s", strerror(errno));
		complain(message);
		close(ends[0]);
	}
	close(ends[1]);
	line = started ? ends[0] : -1;
	return started;
}

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void wait_for_hangup(void)
{
	struct pollfd gone = { .fd = line, .events = 0 };
	int64_t deadline = now_ms() + LAUNCH_WAIT_MS, left;

	while ((left = deadline - now_ms()) > 0)
		if (poll(&gone, 1, (int)left) >= 0 || errno != EINTR)
			return;
}

void launch_end(bool wait)
{
	if (line < 0)
		return;
	shutdown(line, SHUT_WR);
	if (wait)
		wait_for_hangup();
	close(line);
	line = -1;
}
