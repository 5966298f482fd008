/* What C11 has and MinGW has not, for programs that are compiled with `-include windows.h`. Aligned memory is
 * freed by a function of its own there, so that all memory is aligned. */
#ifdef __cplusplus
#include <cstdlib>
#endif
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define aligned_alloc(alignment, bytes) _aligned_malloc(bytes, alignment)
#define malloc(bytes) _aligned_malloc(bytes, 16)
#define calloc(count, bytes) memset(_aligned_malloc((count) * (bytes), 16), 0, (count) * (bytes))
#define free(memory) _aligned_free(memory)
#define timespec_get(time, base) clock_gettime(CLOCK_REALTIME, time)
