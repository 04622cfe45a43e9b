/* A file system without locks, as some network file systems are: flock fails there. Loaded before
 * the program. */
#include <errno.h>
#include <sys/file.h>

int flock(int fd, int operation)
{
    (void)fd;
    (void)operation;
    errno = ENOLCK;
    return -1;
}
