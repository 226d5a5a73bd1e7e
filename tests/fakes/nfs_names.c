/* The names of an NFS mount with default options: a name that was absent stays absent until its directory is opened.
   Loaded with LD_PRELOAD. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST 256
static char absent[MOST][PATH_MAX];

static int is_absent(const char *path) {
    for (int i = 0; path && i < MOST; i++)
        if (absent[i][0] && !strcmp(absent[i], path)) {
            errno = ENOENT;
            return 1;
        }
    return 0;
}

static int note(const char *path, int result) {
    if (result < 0 && errno == ENOENT && path && strlen(path) < PATH_MAX && !is_absent(path))
        for (int i = 0; i < MOST; i++)
            if (!absent[i][0]) {
                strcpy(absent[i], path);
                break;
            }
    if (result < 0 && path && is_absent(path))
        errno = ENOENT;
    return result;
}

static void opened(const char *directory) {
    size_t length = strlen(directory);
    while (length > 1 && directory[length - 1] == '/')
        length--;
    for (int i = 0; i < MOST; i++)
        if (!strncmp(absent[i], directory, length) && absent[i][length] == '/' && !strchr(absent[i] + length + 1, '/'))
            absent[i][0] = 0;
}

/* The path of a name in an open directory. */
static const char *whole(int at, const char *path, char *space) {
    char link[64];
    if (!path || path[0] == '/' || at == AT_FDCWD)
        return path;
    snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    ssize_t length = readlink(link, space, PATH_MAX - 1);
    if (length < 0 || length + strlen(path) + 2 > PATH_MAX)
        return path;
    space[length] = '/';
    strcpy(space + length + 1, path);
    return space;
}

/* O_PATH does not open a directory for the file system. */
static int note_open(const char *path, int flags, int result) {
    if (result >= 0 && flags & O_DIRECTORY && !(flags & O_PATH))
        opened(path);
    return note(path, result);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define OPEN(name)                                                         \
    int name(const char *path, int flags, ...) {                           \
        va_list more;                                                      \
        va_start(more, flags);                                             \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                      \
        if (!(flags & O_CREAT) && is_absent(path))                         \
            return -1;                                                     \
        return note_open(path, flags, REAL(name)(path, flags, mode));      \
    }
#define OPENAT(name)                                                       \
    int name(int at, const char *path, int flags, ...) {                   \
        va_list more;                                                      \
        va_start(more, flags);                                             \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                      \
        char space[PATH_MAX];                                              \
        const char *found = whole(at, path, space);                        \
        if (!(flags & O_CREAT) && is_absent(found))                        \
            return -1;                                                     \
        return note_open(found, flags, REAL(name)(at, path, flags, mode)); \
    }
#define STAT(name, kind)                                                   \
    int name(const char *path, struct kind *found) {                       \
        return is_absent(path) ? -1 : note(path, REAL(name)(path, found)); \
    }
#define STATAT(name, kind)                                                 \
    int name(int at, const char *path, struct kind *found, int flags) {    \
        char space[PATH_MAX];                                              \
        const char *named = whole(at, path, space);                        \
        return is_absent(named) ? -1 : note(named, REAL(name)(at, path, found, flags)); \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)
STATAT(fstatat, stat)
STATAT(fstatat64, stat64)

int access(const char *path, int mode) {
    return is_absent(path) ? -1 : note(path, REAL(access)(path, mode));
}

int faccessat(int at, const char *path, int mode, int flags) {
    char space[PATH_MAX];
    const char *named = whole(at, path, space);
    return is_absent(named) ? -1 : note(named, REAL(faccessat)(at, path, mode, flags));
}

DIR *opendir(const char *path) {
    opened(path);
    return REAL(opendir)(path);
}
