/* The reference for what media costs on this machine: G.711 streams echoed by nothing but C and the kernel.
 *
 *   paced_echo HOST SECONDS COUNT
 *
 * Binds COUNT sockets and prints their ports on one line. Every 20 ms each takes what has come, decodes it, sums up its
 * level, encodes it again and sends the last packet back to where it came from; streams are spread over ten phases of
 * 2 ms. At the end it prints the microseconds of CPU used since the first packet and the packets sent.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

enum { WAIT_SECONDS = 30, PHASES = 10, PHASE_NS = 2000000, FRAME = 160, HEADER = 12, LARGEST = 2048 };

static short linear[256];
static unsigned char ulaw[65536];
static volatile long long level;

static void make_tables(void)
{
    for (int code = 0; code < 256; code++) {
        int bits = ~code & 0xff;
        int magnitude = (((bits & 15) << 3) + 132) << (bits >> 4 & 7);
        linear[code] = bits & 0x80 ? 132 - magnitude : magnitude - 132;
    }
    for (int sample = -32768; sample < 32768; sample++) {
        int magnitude = abs(sample) + 132, exponent = 7;
        if (magnitude > 32767)
            magnitude = 32767;
        while (exponent && !(magnitude & 0x4000 >> (7 - exponent)))
            exponent--;
        int bits = (sample < 0 ? 0x80 : 0) | exponent << 4 | (magnitude >> (exponent + 3) & 15);
        ulaw[sample & 0xffff] = ~bits & 0xff;
    }
}

static long long used_cpu(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000LL + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
}

static int echo(int socket)
{
    unsigned char packet[LARGEST];
    struct sockaddr_in from;
    socklen_t length = sizeof from;
    ssize_t size, last = -1;
    while ((size = recvfrom(socket, packet, sizeof packet, MSG_DONTWAIT, (struct sockaddr *)&from, &length)) >= 0) {
        last = size;
        for (ssize_t at = HEADER; at < size; at++) {
            short sample = linear[packet[at]];
            level += sample * sample;
            packet[at] = ulaw[(unsigned short)sample];
        }
    }
    return last >= HEADER && sendto(socket, packet, last, 0, (struct sockaddr *)&from, length) > 0;
}

int main(int count, char **arguments)
{
    if (count != 4) {
        fprintf(stderr, "usage: paced_echo HOST SECONDS COUNT\n");
        return 2;
    }
    int streams = atoi(arguments[3]);
    int *sockets = calloc(streams, sizeof *sockets);
    make_tables();
    for (int i = 0; i < streams; i++) {
        struct sockaddr_in own = {.sin_family = AF_INET};
        socklen_t length = sizeof own;
        inet_pton(AF_INET, arguments[1], &own.sin_addr);
        sockets[i] = socket(AF_INET, SOCK_DGRAM, 0);
        if (sockets[i] < 0 || bind(sockets[i], (struct sockaddr *)&own, sizeof own) < 0
            || getsockname(sockets[i], (struct sockaddr *)&own, &length) < 0) {
            perror("paced_echo");
            return 1;
        }
        printf("%d ", ntohs(own.sin_port));
    }
    printf("\n");
    fflush(stdout);
    struct timespec start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    long ticks = atol(arguments[2]) * 50 * PHASES, most = ticks + WAIT_SECONDS * 50 * PHASES, sent = 0, busy = 0;
    long long before = used_cpu();
    /* The seconds count from the first packet: on a busy machine the senders start late. */
    for (long tick = 0; busy < ticks && tick < most; tick++) {
        long long sum = start.tv_nsec + (long long)tick * PHASE_NS;
        struct timespec due = {start.tv_sec + sum / 1000000000, sum % 1000000000};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL))
            ;
        for (int i = tick % PHASES; i < streams; i += PHASES)
            sent += echo(sockets[i]);
        if (sent)
            busy++;
        else
            before = used_cpu();
    }
    printf("%lld %ld\n", used_cpu() - before, sent);
    return 0;
}
