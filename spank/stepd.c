/* slurmstepd, on each node, before the tasks: what NCCL shall find in their environment. We run with the user's
 * effective rights but inside a root process, so: read three variables, set three, and look at one file. Each task then
 * changes one of them in its own process. After the tasks, what their probes left is removed (sweep.c). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cluster.h"
#include "contexts.h"
#include "number.h"
#include "port.h"
#include "request.h"
#include "sweep.h"

#define RAS_ADDRESS "NCCL_RAS_ADDR"
#define MEMORY "/dev/shm"

static struct site site;
static char step_address[32]; /* of RAS, as we have set it for the whole step; empty if we have not */
static char probe_folder[64]; /* its name in MEMORY, the same way */

void stepd_init(spank_t spank, int count, char *arguments[])
{
	read_site(&site, count, arguments);
	request_register(spank, &site); /* or slurmstepd warns of an option that nobody knows */
}

static bool is_set(spank_t spank, const char *name)
{
	char value[2];

	return spank_getenv(spank, name, value, sizeof value) != ESPANK_ENV_NOEXIST;
}

/* srun has merged all wishes into one variable. The user can write anything there: it is parsed like any other. */
static bool is_watched(spank_t spank, uint32_t step, struct options *options)
{
	char text[OPTIONS_MAX], message[MESSAGE_MAX];

	if (!is_normal_step(step) || is_set(spank, MONITOR_ENVIRONMENT))
		return false;
	if (spank_getenv(spank, OPTION_ENVIRONMENT, text, sizeof text) != ESPANK_SUCCESS || !*text)
		return false;
	return options_parse(options, text, message) == PARSE_OK && options->mode != MODE_off;
}

/* The job as the user knows it: in a heterogeneous job that of the leader, while S_JOB_ID is the component's. */
static uint32_t job_of(spank_t spank)
{
	char text[16];
	uint32_t job = 0;

	if (spank_getenv(spank, "SLURM_JOB_ID", text, sizeof text) != ESPANK_SUCCESS || !read_u32(text, &job))
		spank_get_item(spank, S_JOB_ID, &job);
	return job;
}

static void read_cluster(spank_t spank, char cluster[256])
{
	*cluster = '\0';
	spank_getenv(spank, "SLURM_CLUSTER_NAME", cluster, 256);
}

static void write_address(spank_t spank, char address[32], uint32_t job, uint32_t step, uint32_t task)
{
	char cluster[256];

	read_cluster(spank, cluster);
	snprintf(address, 32, "localhost:%" PRIu32, ras_port(cluster, job, step, task));
}

static void set_ras_address(spank_t spank, uint32_t job, uint32_t step, const struct options *options)
{
	char address[32];

	if (strcmp(options_value(options, KEY_ras), "on"))
		return;
	write_address(spank, address, job, step, 0);
	if (spank_setenv(spank, RAS_ADDRESS, address, 0) == ESPANK_SUCCESS)
		strcpy(step_address, address);
}

/* "auto" loads the probe where it is installed. A user's own profiler plugin is left alone. */
static void set_probe(spank_t spank, uint32_t job, uint32_t step, const struct options *options)
{
	const char *wish = options_value(options, KEY_probe);
	char folder[80], name[64], cluster[256];
	uid_t uid;

	if (!strcmp(wish, "off") || (!strcmp(wish, "auto") && eaccess(site.probe_plugin, R_OK)))
		return;
	if (is_set(spank, "NCCL_PROFILER_PLUGIN") || spank_get_item(spank, S_JOB_UID, &uid) != ESPANK_SUCCESS)
		return;
	read_cluster(spank, cluster);
	snprintf(name, sizeof name, "ncclmon-%u-%08" PRIx32 "-%" PRIu32 ".%" PRIu32, (unsigned)uid, cluster_hash(cluster), job, step);
	snprintf(folder, sizeof folder, MEMORY "/%s", name);
	spank_setenv(spank, "NCCL_PROFILER_PLUGIN", site.probe_plugin, 0);
	if (spank_setenv(spank, "NCCLMON_PROBE_DIR", folder, 0) == ESPANK_SUCCESS)
		strcpy(probe_folder, name);
}

void stepd_before_tasks(spank_t spank)
{
	struct options options;
	uint32_t job, step;

	*step_address = *probe_folder = '\0';
	if (spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS || !is_watched(spank, step, &options))
		return;
	job = job_of(spank);
	set_ras_address(spank, job, step, &options);
	set_probe(spank, job, step, &options);
}

/* RAS answers for one mesh, and the tasks of a node may belong to several. With one port for all, the kernel would choose
 * who answers. The tasks of a heterogeneous job's components count from 0 each, so they go by the components' own ids. */
void stepd_in_task(spank_t spank)
{
	char address[32];
	uint32_t job, step;
	int task;

	if (!*step_address || spank_getenv(spank, RAS_ADDRESS, address, sizeof address) != ESPANK_SUCCESS ||
	    strcmp(address, step_address))
		return;
	if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_TASK_ID, &task) != ESPANK_SUCCESS || task < 0)
		return;
	write_address(spank, address, job, step, (uint32_t)task);
	spank_setenv(spank, RAS_ADDRESS, address, 1);
}

/* The step's monitor removes them too, but only on the first node, and not if it was killed. */
void stepd_exit(spank_t spank)
{
	struct folder folder = { .parent = MEMORY, .name = probe_folder };

	if (!*probe_folder || spank_get_item(spank, S_JOB_UID, &folder.uid) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_GID, &folder.gid) != ESPANK_SUCCESS)
		return;
	if (!sweep(&folder))
		whisper("the probes' folder was not removed");
}
