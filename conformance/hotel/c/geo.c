/* geo in C, with the client library: answers exactly as services/geo.rs does.
 *
 *   hotel data geo > hotels
 *   geo /run/tollgate.sock hotels     with the tenant's token in TOLLGATE_TOKEN
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "geo.tollgate_service.h"

enum { MOST_HOTELS = 1024, MOST_NEAREST = 5, LONGEST_ID = 15 };

static const double RADIUS_KM = 10.0, EARTH_RADIUS_KM = 6371.0;
static const double RADIANS = 3.14159265358979323846 / 180.0;

/* A hotel, and how far away it is from whoever asks. */
typedef struct {
    char id[LONGEST_ID + 1];
    double lat, lon;
} hotel;

typedef struct {
    size_t count;
    hotel hotels[MOST_HOTELS];
} table;

/* By the haversine formula, in the order of operations of services/geo.rs: the last bit decides between hotels. */
static double distance_km(double a_lat, double a_lon, const hotel *b)
{
    double lat = sin((b->lat - a_lat) * RADIANS / 2.0);
    double lon = sin((b->lon - a_lon) * RADIANS / 2.0);
    double from = cos(a_lat * RADIANS), to = cos(b->lat * RADIANS);
    double h = lat * lat + lon * lon * from * to;
    return 2.0 * EARTH_RADIUS_KM * atan2(sqrt(h), sqrt(1.0 - h));
}

/* Keeps the nearest in order; a hotel goes behind one that is as far and came before it. */
static void nearby(tollgate_call *call, geo_Request_view request, void *user)
{
    const table *all = (const table *)user;
    double lat = (double)geo_Request_get_lat(request), lon = (double)geo_Request_get_lon(request);
    double nearest_km[MOST_NEAREST + 1];
    tollgate_str nearest[MOST_NEAREST + 1];
    geo_Result_value result = {0};
    size_t count = 0, i, at;
    for (i = 0; i < all->count; i++) {
        double km = distance_km(lat, lon, &all->hotels[i]);
        if (!(km <= RADIUS_KM)) {
            continue;
        }
        for (at = count; at > 0 && nearest_km[at - 1] > km; at--) {
            nearest_km[at] = nearest_km[at - 1];
            nearest[at] = nearest[at - 1];
        }
        nearest_km[at] = km;
        nearest[at] = tollgate_text(all->hotels[i].id);
        count = count < MOST_NEAREST ? count + 1 : MOST_NEAREST;
    }
    result.hotel_ids.items = nearest;
    result.hotel_ids.count = count;
    geo_Geo_Nearby_reply(call, &result, NULL, NULL, NULL);
}

/* Reads lines of an id and a position. */
static int read_table(const char *path, table *all)
{
    FILE *file = fopen(path, "r");
    int fields = EOF;
    if (file == NULL) {
        perror(path);
        return 0;
    }
    for (all->count = 0; all->count < MOST_HOTELS; all->count++) {
        hotel *next = &all->hotels[all->count];
        fields = fscanf(file, "%15s %lf %lf", next->id, &next->lat, &next->lon);
        if (fields != 3) {
            break;
        }
    }
    fclose(file);
    if (fields != EOF || all->count == 0) {
        fprintf(stderr, "%s: line %zu isn't \"ID LAT LON\", or is one too many\n", path, all->count + 1);
        return 0;
    }
    return 1;
}

/* What the program is told to end by: blocked in all threads, for the one that waits for it. */
static sigset_t ends;

/* Drains the session when the program is told to end, and so ends the serving. */
static void *drain_when_told(void *session)
{
    int signalled;
    sigwait(&ends, &signalled);
    tollgate_session_drain((tollgate_session *)session, -1, NULL);
    return NULL;
}

int main(int argc, char **argv)
{
    static table all;
    geo_Geo_handlers handlers = {nearby, &all};
    tollgate_session_options options;
    tollgate_status *status;
    tollgate_session *session = NULL;
    tollgate_code code;
    pthread_t thread;
    if (argc != 3) {
        fprintf(stderr, "usage: TOLLGATE_TOKEN=... %s SOCKET HOTELS\n", argv[0]);
        return 2;
    }
    if (!read_table(argv[2], &all)) {
        return 1;
    }
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    options = tollgate_session_options_of(argv[1], NULL);
    status = tollgate_status_new();
    code = tollgate_session_open(&options, &session, status);
    if (code == TOLLGATE_OK) {
        code = geo_Geo_serve(session, &handlers, status);
    }
    if (code == TOLLGATE_OK && pthread_create(&thread, NULL, drain_when_told, session) == 0) {
        puts("geo ready");
        fflush(stdout);
        code = tollgate_session_serve(session, status);
        if (code == TOLLGATE_OK) {
            pthread_join(thread, NULL);
            tollgate_session_free(session);
            tollgate_status_free(status);
            return 0;
        }
    }
    fprintf(stderr, "geo: %s\n", tollgate_status_message(status).data);
    return 1;
}
