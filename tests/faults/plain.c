/* A file system that knows nothing but plain renames, as some network file systems are: renameat2 fails
 * there where it is asked for more. Loaded before the program, and after a library that fails calls or
 * cuts the power.
 *
 *   DH_PLAIN_ERROR=ENOSYS   of a kernel without the call; else EINVAL */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    static int (*real)(int, const char *, int, const char *, unsigned);
    const char *error = getenv("DH_PLAIN_ERROR");
    if (flags) {
        errno = error && strcmp(error, "ENOSYS") == 0 ? ENOSYS : EINVAL;
        return -1;
    }
    if (!real)
        real =
            (int (*)(int, const char *, int, const char *, unsigned))dlsym(RTLD_NEXT, "renameat2");
    return real(from_fd, from, to_fd, to, flags);
}
