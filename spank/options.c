#include "options.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum type { DURATION, PATH, ADDRESS, CHOICE };

static const struct mode_row {
	const char *name, *help;
} modes[] = {
	[MODE_UNSET] = { "", "" },
#define MODE(name, help) [MODE_##name] = { #name, help },
#include "options.def"
};

static const struct key_row {
	const char *name;
	enum type type;
	const char *argument, *fallback, *help;
} keys[] = {
#define KEY(name, type, argument, fallback, help) { #name, type, argument, fallback, help },
#include "options.def"
};

#define MODE_COUNT (sizeof modes / sizeof modes[0])
#define ALL_MODES "off, observe, cancel, requeue"

static void format(char message[MESSAGE_MAX], const char *text, ...) __attribute__((format(printf, 2, 3)));

static void format(char message[MESSAGE_MAX], const char *text, ...)
{
	va_list arguments;

	va_start(arguments, text);
	vsnprintf(message, MESSAGE_MAX, text, arguments);
	va_end(arguments);
}

/* Levenshtein distance, one row at a time (R. Wagner, M. Fischer, The String-to-String Correction Problem, 1974).
 * Words of more than 15 characters are near nothing. */
static size_t distance(const char *a, const char *b)
{
	size_t row[16], width = strlen(b), diagonal, above, i, j;

	if (strlen(a) > 15 || width > 15)
		return 15;
	for (j = 0; j <= width; j++)
		row[j] = j;
	for (i = 1; a[i - 1]; i++) {
		diagonal = row[0];
		row[0] = i;
		for (j = 1; j <= width; j++) {
			above = row[j];
			row[j] = diagonal + (a[i - 1] != b[j - 1]);
			if (above + 1 < row[j])
				row[j] = above + 1;
			if (row[j - 1] + 1 < row[j])
				row[j] = row[j - 1] + 1;
			diagonal = above;
		}
	}
	return row[width];
}

/* Keeps `name` as the nearest word so far when one edit for every three of its letters turns `word` into it. */
static void consider(const char *name, const char *word, const char **nearest, size_t *best)
{
	size_t edits = distance(word, name);

	if (edits < *best && edits * 3 <= strlen(name)) {
		*best = edits;
		*nearest = name;
	}
}

static const char *nearest_key(const char *word)
{
	const char *nearest = NULL;
	size_t best = SIZE_MAX, i;

	for (i = 0; i < KEY_COUNT; i++)
		consider(keys[i].name, word, &nearest, &best);
	return nearest;
}

static const char *nearest_mode_or_key(const char *word)
{
	const char *nearest = NULL;
	size_t best = SIZE_MAX, i;

	for (i = 1; i < MODE_COUNT; i++)
		consider(modes[i].name, word, &nearest, &best);
	for (i = 0; i < KEY_COUNT; i++)
		consider(keys[i].name, word, &nearest, &best);
	return nearest;
}

static bool is_choice(const char *choices, const char *value)
{
	size_t length = strlen(value);
	const char *end;

	for (; length; choices = end + 1) {
		end = choices + strcspn(choices, "|");
		if ((size_t)(end - choices) == length && !memcmp(choices, value, length))
			return true;
		if (!*end)
			break;
	}
	return false;
}

static bool is_address(const char *value)
{
	const char *colon = strrchr(value, ':'), *digit;

	if (!colon || colon == value || strlen(colon + 1) > 5 || strlen(value) >= ADDRESS_VALUE_MAX)
		return false;
	for (digit = colon + 1; *digit; digit++)
		if (*digit < '0' || *digit > '9')
			return false;
	return atoi(colon + 1) > 0 && atoi(colon + 1) < 65536;
}

/* Digits, perhaps a fraction, perhaps ms, s, m, h or d. */
static bool is_duration(const char *value)
{
	static const char *const units[] = { "", "ms", "s", "m", "h", "d" };
	const char *rest = value + strspn(value, "0123456789");
	size_t i, fraction;

	if (rest == value || strlen(value) >= DURATION_VALUE_MAX)
		return false;
	if (*rest == '.') {
		fraction = strspn(rest + 1, "0123456789");
		if (!fraction)
			return false;
		rest += 1 + fraction;
	}
	for (i = 0; i < sizeof units / sizeof units[0]; i++)
		if (!strcmp(rest, units[i]))
			return true;
	return false;
}

static bool check_duration(const char *name, const char *value, char message[MESSAGE_MAX])
{
	if (!is_duration(value)) {
		format(message, "%s: '%.100s' is not a duration (write 15s, 5m or 1h)", name, value);
		return false;
	}
	if (strtod(value, NULL) <= 0) {
		format(message, "%s: '%.100s' must be more than nothing (write 15s, 5m or 1h)", name, value);
		return false;
	}
	return true;
}

/* "on|off" as people read it: "on, off". */
static void not_one_of(const struct key_row *key, const char *value, char message[MESSAGE_MAX])
{
	char choices[64] = "";
	const char *from;
	size_t used = 0;

	for (from = key->argument; *from && used < sizeof choices - 2; from++) {
		choices[used++] = *from == '|' ? ',' : *from;
		if (*from == '|')
			choices[used++] = ' ';
	}
	format(message, "%s: '%.100s' is not one of %s", key->name, value, choices);
}

static bool check_value(const struct key_row *key, const char *value, char message[MESSAGE_MAX])
{
	switch (key->type) {
	case DURATION:
		return check_duration(key->name, value, message);
	case PATH:
		if (*value && strlen(value) < PATH_VALUE_MAX)
			return true;
		format(message, "%s: needs a value of at most %d characters (write %s=reports)", key->name,
		       PATH_VALUE_MAX - 1, key->name);
		return false;
	case ADDRESS:
		if (is_address(value))
			return true;
		break;
	case CHOICE:
		break;
	}
	if (!strchr(value, ':') && is_choice(key->argument, value))
		return true;
	not_one_of(key, value, message);
	return false;
}

static bool take_mode(struct options *options, const char *word, char message[MESSAGE_MAX])
{
	const char *near;
	size_t i;

	for (i = 1; i < MODE_COUNT; i++) {
		if (strcmp(word, modes[i].name))
			continue;
		if (options->mode != MODE_UNSET && options->mode != (enum mode)i) {
			format(message, "both '%s' and '%s': name one mode", modes[options->mode].name, word);
			return false;
		}
		options->mode = (enum mode)i;
		return true;
	}
	near = nearest_mode_or_key(word);
	format(message, "'%.100s' is neither a mode (" ALL_MODES ") nor key=value%s%s%s", word,
	       near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
	return false;
}

static void unknown_key(const char *name, char message[MESSAGE_MAX])
{
	static const char known[] = ""
#define KEY(name, type, argument, fallback, help) ", " #name
#include "options.def"
		;
	const char *near = nearest_key(name);

	format(message, "unknown key '%.100s'%s%s%s (known: %s)", name, near ? "; did you mean '" : "", near ? near : "",
	       near ? "'?" : "", known + 2);
}

static bool take_pair(struct options *options, char *word, char *equals, char message[MESSAGE_MAX])
{
	size_t i;

	*equals = '\0';
	for (i = 0; i < KEY_COUNT; i++) {
		if (strcmp(word, keys[i].name))
			continue;
		if (options->value[i]) {
			format(message, "%s is given twice", keys[i].name);
			return false;
		}
		if (!check_value(&keys[i], equals + 1, message))
			return false;
		options->value[i] = equals + 1;
		return true;
	}
	unknown_key(word, message);
	return false;
}

static enum parse_result take_word(struct options *options, char *word, char message[MESSAGE_MAX])
{
	char *equals = strchr(word, '=');

	if (!*word)
		return PARSE_OK;
	if (!strcmp(word, "help"))
		return PARSE_HELP;
	if (equals)
		return take_pair(options, word, equals, message) ? PARSE_OK : PARSE_ERROR;
	return take_mode(options, word, message) ? PARSE_OK : PARSE_ERROR;
}

static bool is_printable(const char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < ' ' || *text == 127)
			return false;
	return true;
}

static enum parse_result fail(struct options *options)
{
	memset(options, 0, sizeof *options);
	return PARSE_ERROR;
}

enum parse_result options_parse(struct options *options, const char *text, char message[MESSAGE_MAX])
{
	enum parse_result result = PARSE_OK;
	char *word, *comma;

	memset(options, 0, sizeof *options);
	message[0] = '\0';
	options->given = true;
	if (!text || !*text || !strcmp(text, "(null)"))
		return PARSE_OK;
	if (strlen(text) >= sizeof options->text) {
		format(message, "longer than %zu characters", sizeof options->text - 1);
		return fail(options);
	}
	if (!is_printable(text)) {
		format(message, "holds a control character");
		return fail(options);
	}
	strcpy(options->text, text);
	for (word = options->text; word && result == PARSE_OK; word = comma) {
		comma = strchr(word, ',');
		if (comma)
			*comma++ = '\0';
		result = take_word(options, word, message);
	}
	return result == PARSE_ERROR ? fail(options) : result;
}

static enum mode merge_mode(const struct options *const sources[], size_t count)
{
	enum mode mode = MODE_off;
	size_t i;

	for (i = 0; i < count; i++) {
		if (!sources[i]->given)
			continue;
		if (sources[i]->mode != MODE_UNSET)
			mode = sources[i]->mode;
		else if (mode == MODE_off)
			mode = MODE_observe;
	}
	return mode;
}

bool options_merge(const struct options *const sources[], size_t count, char effective[OPTIONS_MAX])
{
	enum mode mode = merge_mode(sources, count);
	size_t used, i, key;
	const char *value;

	used = (size_t)snprintf(effective, OPTIONS_MAX, "%s", modes[mode].name);
	for (key = 0; key < KEY_COUNT; key++) {
		value = NULL;
		for (i = 0; i < count; i++)
			if (sources[i]->value[key])
				value = sources[i]->value[key];
		if (value && used < OPTIONS_MAX)
			used += (size_t)snprintf(effective + used, OPTIONS_MAX - used, ",%s=%s", keys[key].name, value);
	}
	return mode != MODE_off;
}

const char *options_value(const struct options *options, enum key key)
{
	return options->value[key] ? options->value[key] : keys[key].fallback;
}

static size_t append(char *text, size_t size, size_t used, const char *format, ...)
{
	va_list arguments;
	int length;

	if (used >= size)
		return used;
	va_start(arguments, format);
	length = vsnprintf(text + used, size - used, format, arguments);
	va_end(arguments);
	return length < 0 ? used : used + (size_t)length;
}

void options_help(char *text, size_t size, const char *site)
{
	size_t used = 0, i;
	char pair[64];

	used = append(text, size, used, "--" OPTION_NAME "[=MODE][,KEY=VALUE...]  finds out why NCCL jobs hang\n\nmodes:\n");
	for (i = 1; i < MODE_COUNT; i++)
		used = append(text, size, used, "  %-23s %s\n", modes[i].name, modes[i].help);
	used = append(text, size, used, "\nkeys:\n");
	for (i = 0; i < KEY_COUNT; i++) {
		snprintf(pair, sizeof pair, "%s=%s", keys[i].name, keys[i].argument);
		used = append(text, size, used, "  %-23s %s (default %s)\n", pair, keys[i].help, keys[i].fallback);
	}
	used = append(text, size, used,
		      "\nTIME is written 500ms, 15s, 5m or 1h; a plain number is seconds.\n"
		      "The same text may stand in " OPTION_ENVIRONMENT "; the option is stronger, key by key.\n");
	if (site)
		append(text, size, used, "This site's defaults: %s\n", site);
}
