/* ncclmon-step JOB STEP OPTIONS SRUN NCCLMON [CONFIG]
 *
 * srun's plugin becomes this program when a step has run for a while. Standard input is the line to that srun: its end
 * is the end of the step. Standard error is srun's own until the report folder is there, and its monitor.log from then
 * on. Being a program of its own, it may take its time with Slurm's controller: nobody waits for it. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/slurm.h>

#include "../number.h"
#include "step.h"

static bool is_over(void)
{
	struct pollfd line = { .fd = STDIN_FILENO, .events = POLLIN };

	return poll(&line, 1, 0) > 0;
}

/* A call to slurmctld may take minutes, and has no other way out: while this is on, the end of the line ends us, by the
 * signal SIGIO. */
static void end_with_the_line(bool on)
{
	fcntl(STDIN_FILENO, F_SETOWN, getpid());
	fcntl(STDIN_FILENO, F_SETFL, on ? O_ASYNC : 0);
	if (is_over())
		exit(EXIT_SUCCESS);
}

/* One line to the user, unless the step has ended in the meantime, which explains everything. */
static void give_up(const struct step *step, const char *reason)
{
	if (!is_over())
		fprintf(stderr, "ncclmon: step %u.%u is not watched: %s\n", step->job, step->step, reason);
	exit(EXIT_FAILURE);
}

static void read_arguments(struct step *step, int count, char *arguments[])
{
	*step = (struct step){ .group = -1 };
	if (count < 6 || count > 7 || !read_u32(arguments[1], &step->job) || !read_u32(arguments[2], &step->step)) {
		fprintf(stderr, "ncclmon-step: is started by srun's plugin only\n");
		exit(2);
	}
	step->options = arguments[3];
	step->srun = arguments[4];
	step->ncclmon = arguments[5];
	step->config = count > 6 ? arguments[6] : NULL;
}

static bool open_log(const struct step *step)
{
	char path[PATH_MAX + 16];
	int log;

	snprintf(path, sizeof path, "%s/monitor.log", step->folder);
	log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (log < 0 || dup2(log, STDOUT_FILENO) < 0 || dup2(log, STDERR_FILENO) < 0)
		return false;
	close(log);
	return true;
}

int main(int count, char *arguments[])
{
	char message[MESSAGE_MAX], **command, **environment;
	struct step step;

	read_arguments(&step, count, arguments);
	end_with_the_line(true);
	slurm_init(NULL);
	if (!find_first_node(&step))
		give_up(&step, slurm_strerror(errno));
	end_with_the_line(false);
	if (!make_folder(&step, message))
		give_up(&step, message);
	if (!open_log(&step))
		give_up(&step, strerror(errno));
	command = monitor_command(&step);
	environment = monitor_environment(&step, environ);
	if (!command || !environment)
		give_up(&step, strerror(ENOMEM));
	supervise(command, environment);
	return EXIT_SUCCESS;
}
