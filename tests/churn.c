/* Threads that start threads and end, without Python's lock: start(50, 3), then end(). */
#include <pthread.h>

static pthread_t all[1024];
static int count;
static volatile int stop;

static void *live(void *depth)
{
    pthread_t child;
    if (!stop && depth && !pthread_create(&child, 0, live, (char *)depth - 1))
        pthread_join(child, 0);
    return 0;
}

static void *churn(void *depth)
{
    while (!stop)
        live(depth);
    return 0;
}

void start(int threads, long depth)
{
    while (count < threads)
        pthread_create(&all[count++], 0, churn, (void *)depth);
}

void end(void)
{
    stop = 1;
    while (count)
        pthread_join(all[--count], 0);
}
