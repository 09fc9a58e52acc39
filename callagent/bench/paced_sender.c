/* The reference for how evenly this machine can send: G.711 streams paced by nothing but the kernel's clock.
 *
 *   paced_sender HOST SECONDS PORT...
 *
 * One socket per stream sends a packet of 172 octets every 20 ms to its PORT. Streams are spread over ten phases of
 * 2 ms, as the pump of the server does it, and packet n of a phase is due at start + phase * 2 ms + n * 20 ms.
 * Prints the port of each stream; what comes back is read and forgotten.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { PHASES = 10, PHASE_NS = 2000000, FRAME = 160, HEADER = 12 };

struct stream {
    int socket;
    unsigned char packet[HEADER + FRAME];
};

static void put(unsigned char *at, unsigned value, int octets)
{
    while (octets--) {
        at[octets] = value & 0xff;
        value >>= 8;
    }
}

static int open_stream(struct stream *stream, const char *host, int port, unsigned ssrc)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    if (inet_pton(AF_INET, host, &to.sin_addr) != 1)
        return -1;
    stream->socket = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    if (stream->socket < 0 || connect(stream->socket, (struct sockaddr *)&to, sizeof to) < 0)
        return -1;
    memset(stream->packet, 0xff, sizeof stream->packet);
    stream->packet[0] = 0x80;
    stream->packet[1] = 0;
    put(stream->packet + 8, ssrc, 4);
    return 0;
}

static void sleep_until(const struct timespec *start, long long nanoseconds)
{
    long long sum = start->tv_nsec + nanoseconds;
    struct timespec due = {start->tv_sec + sum / 1000000000, sum % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL))
        ;
}

static int own_port(const struct stream *stream)
{
    struct sockaddr_in own;
    socklen_t length = sizeof own;
    return getsockname(stream->socket, (struct sockaddr *)&own, &length) < 0 ? 0 : ntohs(own.sin_port);
}

int main(int count, char **arguments)
{
    if (count < 4) {
        fprintf(stderr, "usage: paced_sender HOST SECONDS PORT...\n");
        return 2;
    }
    int streams = count - 3;
    struct stream *all = calloc(streams, sizeof *all);
    for (int i = 0; i < streams; i++)
        if (!all || open_stream(&all[i], arguments[1], atoi(arguments[3 + i]), i + 1) < 0) {
            perror("paced_sender");
            return 1;
        }
    for (int i = 0; i < streams; i++)
        printf("%d ", own_port(&all[i]));
    printf("\n");
    fflush(stdout);
    unsigned char back[2048];
    struct timespec start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    long ticks = atol(arguments[2]) * 50 * PHASES;
    for (long tick = 0; tick < ticks; tick++) {
        sleep_until(&start, (long long)tick * PHASE_NS);
        unsigned frame = tick / PHASES;
        for (int i = tick % PHASES; i < streams; i += PHASES) {
            put(all[i].packet + 2, frame, 2);
            put(all[i].packet + 4, frame * FRAME, 4);
            if (send(all[i].socket, all[i].packet, sizeof all[i].packet, 0) < 0)
                continue;
            while (recv(all[i].socket, back, sizeof back, 0) > 0)
                ;
        }
    }
    return 0;
}
