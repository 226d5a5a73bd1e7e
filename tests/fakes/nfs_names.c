/* The names of an NFS mount with default options: a name that was absent stays absent until its directory is opened.
   Loaded with LD_PRELOAD. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
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

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define OPEN(name)                                                         \
    int name(const char *path, int flags, ...) {                           \
        va_list more;                                                      \
        va_start(more, flags);                                             \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                      \
        if (!(flags & O_CREAT) && is_absent(path))                         \
            return -1;                                                     \
        return note(path, REAL(name)(path, flags, mode));                  \
    }
#define OPENAT(name)                                                       \
    int name(int at, const char *path, int flags, ...) {                   \
        va_list more;                                                      \
        va_start(more, flags);                                             \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                      \
        if (!(flags & O_CREAT) && is_absent(path))                         \
            return -1;                                                     \
        return note(path, REAL(name)(at, path, flags, mode));              \
    }
#define STAT(name, kind)                                                   \
    int name(const char *path, struct kind *found) {                       \
        return is_absent(path) ? -1 : note(path, REAL(name)(path, found)); \
    }
#define STATAT(name, kind)                                                 \
    int name(int at, const char *path, struct kind *found, int flags) {    \
        return is_absent(path) ? -1 : note(path, REAL(name)(at, path, found, flags)); \
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
    return is_absent(path) ? -1 : note(path, REAL(faccessat)(at, path, mode, flags));
}

DIR *opendir(const char *path) {
    opened(path);
    return REAL(opendir)(path);
}
