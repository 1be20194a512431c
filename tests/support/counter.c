/* A task as cheap as a process can be: appends "<task id> <attempt> <life>" to the file named by its argument. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static size_t put(char *line, size_t at, const char *name) {
    const char *value = getenv(name);
    size_t length = value ? strlen(value) : 0;
    if (at + length + 1 > 4000) _exit(3);
    memcpy(line + at, value ? value : "", length);
    line[at + length] = ' ';
    return at + length + 1;
}

int main(int count, char **arguments) {
    char line[4096];
    size_t length = 0;
    int file;
    if (count != 2) return 2;
    length = put(line, length, "FLEETCRAFT_TASK_ID");
    length = put(line, length, "FLEETCRAFT_ATTEMPT");
    length = put(line, length, "FLEETCRAFT_LIFE");
    line[length - 1] = '\n';
    file = open(arguments[1], O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (file < 0) return 4;
    return write(file, line, length) == (ssize_t)length ? 0 : 5;
}
