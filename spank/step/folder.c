/* The report folder: <where srun runs>/ncclmon-<job>.<step>, or below what `dir=` names. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../number.h"
#include "step.h"

static bool is_folder(const char *path)
{
	struct stat status;

	return !stat(path, &status) && S_ISDIR(status.st_mode);
}

/* Parents that cannot be made are there already, or the last call says what is wrong. */
static bool make_with_parents(char *path)
{
	char *slash;

	for (slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		mkdir(path, 0755);
		*slash = '/';
	}
	return !mkdir(path, 0755) || (errno == EEXIST && is_folder(path));
}

/* A requeued job has the same ids again, and what its earlier run left is worth keeping. */
static void name_run(char *name, size_t size, const struct step *step)
{
	uint32_t restarts = 0;
	int used = snprintf(name, size, "ncclmon-%" PRIu32 ".%" PRIu32, step->job, step->step);

	if (read_u32(getenv("SLURM_RESTART_COUNT"), &restarts) && restarts)
		snprintf(name + used, size - (size_t)used, ".r%" PRIu32, restarts);
}

static bool compose(struct step *step, const char *dir)
{
	char here[PATH_MAX] = "", name[64];
	int length;

	if (*dir != '/' && !getcwd(here, sizeof here))
		return false;
	name_run(name, sizeof name, step);
	if (!strcmp(dir, "."))
		length = snprintf(step->folder, sizeof step->folder, "%s/%s", here, name);
	else
		length = snprintf(step->folder, sizeof step->folder, "%s%s%s/%s", here, *here ? "/" : "", dir, name);
	if (length < (int)sizeof step->folder)
		return true;
	errno = ENAMETOOLONG;
	return false;
}

bool make_folder(struct step *step, char message[MESSAGE_MAX])
{
	struct options options;

	if (options_parse(&options, step->options, message) != PARSE_OK)
		return false;
	if (compose(step, options_value(&options, KEY_dir)) && make_with_parents(step->folder))
		return true;
	snprintf(message, MESSAGE_MAX, "cannot make the report folder %.300s: %s (dir=PATH puts it elsewhere)", step->folder,
		 strerror(errno));
	return false;
}
