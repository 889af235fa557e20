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

/* Whoever shares the parent may have made a folder of this name before us, with links in it to files of ours. */
static bool is_ours_alone(const char *path)
{
	struct stat status;

	return !lstat(path, &status) && S_ISDIR(status.st_mode) && status.st_uid == geteuid() &&
	       !(status.st_mode & (S_IWGRP | S_IWOTH));
}

/* Returns NULL, or what is wrong. Parents that cannot be made are there already, or the last call says so. */
static const char *make_with_parents(char *path)
{
	char *slash;

	for (slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		mkdir(path, 0755);
		*slash = '/';
	}
	if (!mkdir(path, 0755))
		return NULL;
	if (errno != EEXIST)
		return strerror(errno);
	return is_ours_alone(path) ? NULL : "what is there is not a folder of yours alone";
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
	const char *wrong;

	if (options_parse(&options, step->options, message) != PARSE_OK)
		return false;
	wrong = compose(step, options_value(&options, KEY_dir)) ? make_with_parents(step->folder) : strerror(errno);
	if (!wrong)
		return true;
	snprintf(message, MESSAGE_MAX, "cannot make the report folder %.300s: %s (dir=PATH puts it elsewhere)", step->folder,
		 wrong);
	return false;
}
