"""Finals before partials, partials dropped when behind, every job answered once."""

from __future__ import annotations

from callagent.speech.local import wire
from callagent.speech.local.engine import Job, Jobs, Urgency

NOW, SOON, FIRST, PARTIAL = Urgency


class Answers(list[tuple[str, wire.Answer | None]]):
    """Who was answered what, in order."""

    def job(self, name: str, urgency: Urgency, due: float = 100.0) -> Job:
        return Job(urgency, lambda number: wire.Speak(number, name), lambda answer: self.append((name, answer)), due)


def text(taken: tuple[int, Job] | None) -> str | None:
    if taken is None:
        return None
    request = taken[1].make(taken[0])
    assert isinstance(request, wire.Speak)
    return request.text


def test_a_final_goes_before_what_waited_longer() -> None:
    answers, jobs = Answers(), Jobs(at_once=5, partials=8, longest=20)
    in_order_of_coming = [("partial", PARTIAL), ("first", FIRST), ("draft", SOON), ("final", NOW), ("final 2", NOW)]
    for name, urgency in in_order_of_coming:
        assert jobs.add(answers.job(name, urgency))
    assert [text(jobs.take(0)) for _ in range(6)] == ["final", "final 2", "draft", "first", "partial", None]


def test_the_process_gets_no_more_than_it_works_on_at_once() -> None:
    answers, jobs = Answers(), Jobs(at_once=1, partials=8, longest=20)
    for name in ("one", "two"):
        jobs.add(answers.job(name, NOW))
    taken = jobs.take(0)
    assert text(taken) == "one"
    assert taken is not None
    assert jobs.take(0) is None
    spoken = wire.Spoken(taken[0], b"")
    jobs.answer(taken[0], spoken)
    assert answers == [("one", spoken)]
    assert text(jobs.take(0)) == "two"


def test_partials_are_dropped_when_enough_wait_and_finals_never() -> None:
    answers, jobs = Answers(), Jobs(at_once=1, partials=2, longest=20)
    assert [jobs.add(answers.job(str(n), PARTIAL)) for n in range(4)] == [True, True, False, False]
    assert all(jobs.add(answers.job(str(n), NOW)) for n in range(50))
    assert jobs.dropped == 2
    assert answers == []


def test_a_hastened_draft_overtakes() -> None:
    answers, jobs = Answers(), Jobs(at_once=9, partials=2, longest=20)
    first, second = answers.job("first", SOON), answers.job("second", SOON)
    jobs.add(first)
    jobs.add(second)
    jobs.hasten(second, NOW)
    assert [text(jobs.take(0)) for _ in range(3)] == ["second", "first", None]


def test_hastening_a_running_job_changes_nothing() -> None:
    answers, jobs = Answers(), Jobs(at_once=9, partials=2, longest=20)
    job = answers.job("draft", SOON)
    jobs.add(job)
    taken = jobs.take(0)
    assert taken is not None
    jobs.hasten(job, NOW)
    assert jobs.take(0) is None
    jobs.answer(taken[0], None)
    assert answers == [("draft", None)]


def test_a_cancelled_job_is_not_sent_and_not_answered() -> None:
    answers, jobs = Answers(), Jobs(at_once=1, partials=2, longest=20)
    running, waiting = answers.job("running", NOW), answers.job("waiting", NOW)
    jobs.add(running)
    jobs.add(waiting)
    taken = jobs.take(0)
    assert taken is not None
    jobs.cancel(running)
    jobs.cancel(waiting)
    jobs.answer(taken[0], wire.Spoken(taken[0], b""))
    assert jobs.take(0) is None
    assert answers == []
    assert jobs.idle


def test_a_dead_process_leaves_its_jobs_unanswered_and_the_waiting_ones_in_place() -> None:
    answers, jobs = Answers(), Jobs(at_once=1, partials=2, longest=20)
    for name in ("running", "waiting"):
        jobs.add(answers.job(name, NOW))
    jobs.take(0)
    jobs.abandon()
    assert answers == [("running", None)]
    assert text(jobs.take(0)) == "waiting"


def test_nobody_waits_longer_than_the_deadline() -> None:
    answers, jobs = Answers(), Jobs(at_once=1, partials=2, longest=20)
    jobs.add(answers.job("late", NOW, due=5))
    jobs.add(answers.job("later", NOW, due=9))
    assert not jobs.expire(6)
    assert answers == [("late", None)]
    assert jobs.take(10) is None
    assert answers == [("late", None), ("later", None)]


def test_a_running_job_hangs_only_after_the_longest_work() -> None:
    answers, jobs = Answers(), Jobs(at_once=1, partials=2, longest=20)
    jobs.add(answers.job("slow", NOW, due=5))
    jobs.take(4)
    assert not jobs.expire(23)
    assert jobs.expire(25)
    assert answers == []


def test_an_answer_nobody_asked_for_is_ignored() -> None:
    jobs = Jobs(at_once=1, partials=2, longest=20)
    jobs.answer(7, wire.Spoken(7, b""))
    assert jobs.idle


def test_clearing_answers_everybody() -> None:
    answers, jobs = Answers(), Jobs(at_once=1, partials=2, longest=20)
    for name in ("running", "waiting"):
        jobs.add(answers.job(name, NOW))
    jobs.take(0)
    jobs.clear()
    assert answers == [("running", None), ("waiting", None)]
    assert jobs.take(0) is None
    assert jobs.idle
