# SPDX-License-Identifier: MIT
"""Deliberate bugs in the server's code, for mutants.py."""

# name: (file, [(text, replacement), ..])
MUTANTS = {
    "submit-wakes-nobody": ("runtime/server/server_queue.c", [(
        "&q->counts.refused) += 1;\n    pthread_cond_signal(&q->work);", "&q->counts.refused) += 1;")]),
    "text-wakes-nobody": ("runtime/server/server_writing.c", [(
        "    server_queue_charge(q, job, n_tokens);\n    pthread_cond_broadcast(&server_job_first(job)->changed);",
        "    server_queue_charge(q, job, n_tokens);")]),
    "begin-wakes-nobody": ("runtime/server/server_queue.c", [(
        "    job->state = SERVER_RUNNING;\n    pthread_cond_broadcast(&server_job_first(job)->changed);",
        "    job->state = SERVER_RUNNING;")]),
    "end-wakes-nobody": ("runtime/server/server_queue.c", [(
        "finish != SERVER_FINISH_FAILED;\n    pthread_cond_broadcast(&server_job_first(job)->changed);",
        "finish != SERVER_FINISH_FAILED;")]),
    "follower-wakes-itself": ("runtime/server/server_writing.c", [(  # and not who waits for the leader's condition
        "    pthread_cond_broadcast(&server_job_first(job)->changed);", "    pthread_cond_broadcast(&job->changed);")]),
    "stop-wakes-nobody": ("runtime/server/server_queue.c", [(
        "    q->ending = true;\n    pthread_cond_signal(&q->work);", "    q->ending = true;")]),
    "workshop-tells-nobody": ("runtime/server/server_workshop.c", [(
        "        pthread_cond_broadcast(&w->done);\n", "")]),
    "left-in-the-workshop": ("runtime/server/server_workshop.c", [(  # what nobody waits for stays on the list
        "            *at = task->next;\n            w->counts", "            w->counts")]),
    "client-gone-unnoticed": ("runtime/server/server_queue.c", [(
        "        (*job)->cancelled = true;\n", "")]),
    "cancel-without-lock": ("runtime/server/server_queue.c", [(
        "        if ((*job)->session != NULL) {\n            moe_session_cancel((*job)->session);\n        }\n"
        "        left = leave_list(q, *job);\n    }\n    pthread_mutex_unlock(&q->lock);",
        "        left = leave_list(q, *job);\n    }\n    moe_session *session = (*job)->session;\n"
        "    pthread_mutex_unlock(&q->lock);\n    if (session != NULL) {\n        moe_session_cancel(session);\n    }")]),
    "gone-take-places": ("runtime/server/server_queue.c", [(  # jobs of clients that left are counted as waiting
        "        left = leave_list(q, *job);\n", "")]),
    "gone-are-kept": ("runtime/server/server_queue.c", [(  # the queue's reference to such a job
        "    if (left) {\n        server_queue_drop(q, *job); /* the queue's reference */\n    }\n", "    (void)left;\n")]),
    "short-for-ever": ("runtime/server/server_scheduler.c", [(
        "    s->n_running = --s->n_active;\n    s->short_of_memory = false;", "    s->n_running = --s->n_active;")]),
    "ended-ones-run": ("runtime/server/server_scheduler.c", [(
        "    s->n_running = --s->n_active;", "    s->n_active--;")]),
    "last-fails-first": ("runtime/server/server_scheduler.c", [(  # a job fails where another could be set back
        "    if (memory && s->n_active > 1) {", "    if (memory && s->n_active > 2) {")]),
    "idle-ones-stay": ("runtime/server/server_scheduler.c", [(  # memory of idle sessions is not taken back
        "    if (memory && server_sessions_close_oldest(&s->sessions, NULL)) {\n        return;\n    }\n", "")]),
    "set-back-keeps-session": ("runtime/server/server_scheduler.c", [(
        "    moe_session *session = server_queue_put_back(s->queue, job);\n    moe_session_close(&session);",
        "    (void)server_queue_put_back(s->queue, job);")]),
    "told-twice": ("runtime/server/server_writing.c", [(
        "bool is_known = job->n_repeated <= job->n_written;", "bool is_known = false;")]),
    "put-back-uncounted": ("runtime/server/server_queue.c", [(
        "    q->first = job;\n    q->n_waiting++;", "    q->first = job;")]),
    "next-uncounted": ("runtime/server/server_queue.c", [(
        "        job->next = NULL;\n        q->n_waiting--;", "        job->next = NULL;")]),
    "paid-twice": ("runtime/server/server_queue.c", [(
        "    job->charged = 0;\n", "")]),
    "never-paid-back": ("runtime/server/server_queue.c", [(
        "        if (last) {\n            server_memory_release(q->memory, &job->charged, job->charged);\n        }\n", "")]),
    "one-session-more": ("runtime/server/server_sessions.c", [(
        "        n_active + s->n_idle < parallel ||", "        n_active + s->n_idle <= parallel ||")]),
    "shared-session": ("runtime/server/server_sessions.c", [(  # an active session is continued, and not copied
        "    if (source != NULL && moe_session_fork(out, source, NULL) == MOE_OK) {",
        "    if (source != NULL && (*out = source) != NULL) {")]),
    "leader-goes-first": ("runtime/server/server_job.c", [(
        "    leader->references++;\n", "")]),
    "greedy-first": ("runtime/server/server_queue.c", [(
        "        return clock_a < clock_b;", "        return clock_a > clock_b;")]),
    "free-of-charge": ("runtime/server/server_queue.c", [(
        "    client_of(q, job->client)->clock += n_tokens;", "    (void)client_of(q, job->client);\n    (void)n_tokens;")]),
    "half-a-character": ("runtime/server/server_writing.c", [(  # of a text that was cut off is told
        "        (void)moe_text_finish(job->text, &size);\n", "        (void)size;\n")]),
    "first-token-only": ("runtime/server/server_writing.c", [(  # tokens behind the first of a step are lost
        "        for (size_t i = 0; i < n; i++) {", "        for (size_t i = 0; i < 1; i++) {")]),
}
