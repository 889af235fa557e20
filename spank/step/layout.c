/* Where a step runs. Slurm's environment does not say so in time: SLURM_STEP_NODELIST is set for tasks only. */
#include <ctype.h>
#include <inttypes.h>
#include <slurm/slurm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../number.h"
#include "step.h"

/* The first name of a folded list: "n[08-11,20],m1" is n08. */
static bool first_name(const char *list, char *name, size_t size)
{
	__auto_type hosts = slurm_hostlist_create(list); /* hostlist_t, and hostlist_t * in later releases */
	char *first = hosts ? slurm_hostlist_shift(hosts) : NULL;
	bool fits = first && strlen(first) < size;

	if (fits)
		strcpy(name, first);
	free(first);
	if (hosts)
		slurm_hostlist_destroy(hosts);
	return fits;
}

static bool ask(uint32_t job, struct step *step)
{
	slurm_step_layout_t *layout;
	bool found = false;
#ifdef SLURM_STEP_ID_INITIALIZER
	slurm_step_id_t id = SLURM_STEP_ID_INITIALIZER;
#else
	slurm_step_id_t id;

	memset(&id, 0, sizeof id);
#endif
	id.job_id = job;
	id.step_id = step->step;
	id.step_het_comp = NO_VAL;
	layout = slurm_job_step_layout_get(&id);
	if (layout) {
		found = layout->node_list && first_name(layout->node_list, step->node, sizeof step->node);
		slurm_job_step_layout_free(layout);
	}
	return found;
}

/* Job id of a component, from the environment of a heterogeneous job ("pack" in srun's own allocations up to 22.05). */
static bool component(int group, uint32_t *job)
{
	static const char *const names[] = { "SLURM_JOB_ID_HET_GROUP_%d", "SLURM_JOB_ID_PACK_GROUP_%d" };
	char name[64];
	size_t i;

	for (i = 0; i < sizeof names / sizeof names[0]; i++) {
		snprintf(name, sizeof name, names[i], group);
		if (read_u32(getenv(name), job))
			return true;
	}
	return false;
}

/* The number of components, when this step belongs to the heterogeneous job of the environment; else 0. */
static int component_count(uint32_t job)
{
	uint32_t size, other;
	int group;

	if (!read_u32(getenv("SLURM_HET_SIZE"), &size) || size < 2 || size > 1024)
		return 0;
	for (group = 0; group < (int)size; group++)
		if (component(group, &other) && other == job)
			return (int)size;
	return 0;
}

/* srun names us the job id of any one component; the step has the same id in all components that it spans. */
bool find_first_node(struct step *step)
{
	int count = component_count(step->job), group;
	uint32_t job;

	step->group = -1;
	if (!count)
		return ask(step->job, step);
	for (group = 0; group < count; group++) {
		if (!component(group, &job) || !ask(job, step))
			continue;
		step->group = group;
		return component(0, &step->job);
	}
	return false;
}
