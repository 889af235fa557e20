/* Watches over the monitor's srun from its start to its end. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "step.h"

/* After the end of the step the monitor has this long for its last report, then its srun as long for each signal.
 * SIGKILL goes to srun alone: the process that it leaves behind for this case ends the step. */
#define GRACE_MS 10000
#define SIGNAL_MS 2000

#define LOG_MAX (256UL << 20)

enum { LINE, CHILD };

/* A monitor that has gone mad fills no file system. Slurm hands the limit on to the monitor itself. Writing fails then,
 * which ends the log and not the watch. */
static void limit_files(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur <= LOG_MAX)
		return;
	limit.rlim_cur = LOG_MAX;
	setrlimit(RLIMIT_FSIZE, &limit);
	signal(SIGXFSZ, SIG_IGN);
}

static pid_t start(char *const command[], char *const environment[], const sigset_t *mask)
{
	pid_t child = fork();

	if (child)
		return child;
	sigprocmask(SIG_SETMASK, mask, NULL);
	limit_files();
	execvpe(command[0], command, environment);
	fprintf(stderr, "ncclmon: cannot run %s: %s\n", command[0], strerror(errno));
	_exit(127);
}

static void describe(int status)
{
	if (WIFSIGNALED(status))
		fprintf(stderr, "ncclmon: the monitor step was ended by signal %d\n", WTERMSIG(status));
	else if (WEXITSTATUS(status))
		fprintf(stderr, "ncclmon: the monitor step ended with exit code %d\n", WEXITSTATUS(status));
}

/* Returns true once the child is gone. */
static bool is_gone(pid_t child)
{
	int status;

	if (waitpid(child, &status, WNOHANG) != child)
		return false;
	describe(status);
	return true;
}

/* Nothing is ever written to the line, so anything to read is its end; it is not looked at again. */
static void follow(pid_t child, int children)
{
	static const int signals[] = { SIGTERM, SIGKILL };
	struct pollfd events[] = { [LINE] = { STDIN_FILENO, POLLIN, 0 }, [CHILD] = { children, POLLIN, 0 } };
	struct signalfd_siginfo drained;
	size_t sent = 0;
	int wait_ms = -1, count;

	while (!is_gone(child)) {
		count = poll(events, 2, wait_ms);
		if (count > 0 && events[LINE].revents) {
			events[LINE].fd = -1;
			wait_ms = GRACE_MS;
		}
		if (count > 0 && events[CHILD].revents && read(children, &drained, sizeof drained) < 0)
			return;
		if (count == 0) {
			if (sent == sizeof signals / sizeof signals[0])
				return;
			fprintf(stderr, "ncclmon: the monitor step outlives its step, sending signal %d\n", signals[sent]);
			kill(child, signals[sent++]);
			wait_ms = SIGNAL_MS;
		}
	}
}

void supervise(char *const command[], char *const environment[])
{
	sigset_t child_signal, before;
	int children;
	pid_t child;

	sigemptyset(&child_signal);
	sigaddset(&child_signal, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child_signal, &before);
	children = signalfd(-1, &child_signal, SFD_CLOEXEC | SFD_NONBLOCK);
	child = children < 0 ? -1 : start(command, environment, &before);
	if (child < 0)
		fprintf(stderr, "ncclmon: cannot start the monitor step: %s\n", strerror(errno));
	else
		follow(child, children);
}
