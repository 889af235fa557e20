/* srun: decide whether this step is watched, and start and end its monitor step. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "contexts.h"
#include "launch.h"
#include "request.h"

static struct site site;
static struct request request;
static int exit_status; /* 0 until srun is about to end otherwise */

void srun_init(spank_t spank, int count, char *arguments[])
{
	read_site(&site, count, arguments);
	request_register(spank, &site);
}

/* What holds here is what the tasks see, so that slurmstepd, and an srun inside a task, need not decide again. */
void srun_options_read(void)
{
	request_settle(&request);
	if (request.watch || request.asked)
		setenv(OPTION_ENVIRONMENT, request.effective, 1);
}

/* The site's wish alone is not for the batch and interactive steps, nor for steps smaller than it says. */
static bool is_wanted(spank_t spank, uint32_t step)
{
	uint32_t tasks = 0;

	if (!request.watch || !is_normal_step(step))
		return false;
	if (request.asked || spank_get_item(spank, S_JOB_TOTAL_TASK_COUNT, &tasks) != ESPANK_SUCCESS)
		return true;
	return tasks >= site.min_tasks;
}

/* srun passes the status to exit(), and nowhere else to us. Such handlers run last registered first, so before the one
 * by which srun calls slurm_spank_exit. */
static void keep_status(int status, void *unused)
{
	(void)unused;
	exit_status = status;
}

static const char *own_srun(void)
{
	static char path[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);

	return length > 0 ? path : "srun";
}

static void start_monitor(uint32_t job, uint32_t step)
{
	struct launch launch = {
		.job = job,
		.step = step,
		.options = request.effective,
		.srun = site.srun ? site.srun : own_srun(),
		.ncclmon = site.ncclmon,
		.config = site.config,
		.delay_ms = site.delay_ms,
	};

	if (launch_start(&launch) && on_exit(keep_status, NULL))
		whisper("the status of srun will not be known");
}

void srun_step_created(spank_t spank)
{
	static bool called;
	uint32_t job, step;

	if (called || spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS)
		return;
	called = true;
	if (is_wanted(spank, step))
		start_monitor(job, step);
	else if (request.watch && !request.asked)
		setenv(OPTION_ENVIRONMENT, "", 1); /* or an srun inside would take the site's wish for the user's */
}

/* Whether the monitor may end with an exit code that is to stand in Slurm's records. */
static bool may_end_the_step(void)
{
	struct options options;
	char message[MESSAGE_MAX];

	return options_parse(&options, request.effective, message) == PARSE_OK && options.mode != MODE_observe;
}

void srun_exit(void)
{
	launch_end(exit_status && may_end_the_step());
}
