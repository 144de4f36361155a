"""Line of a rollout whose new trainer learns a part of the log again."""

from livectr.rollout.catching_up import CatchingUp


def test_the_time_left_is_that_of_the_examples_left_at_the_measured_rate() -> None:
    now = [0.0]
    behind = CatchingUp(10_000, clock=lambda: now[0])
    assert behind.line(0) == "learns again: 0 of 10,000 examples"
    now[0] = 5.0  # the trainer starts
    assert behind.line(1000) == "learns again: 1,000 of 10,000 examples"
    now[0] = 7.0
    assert behind.line(2000) == "learns again: 2,000 of 10,000 examples, 16 seconds left"
    behind.look(0)
    assert behind.left == 10_000 and behind.line(10_500) == "learns again: 10,000 of 10,000 examples"
    behind.look(3)
    assert behind.left == 0 and behind.line(10_500) == ""
    assert CatchingUp(0).line(7) == ""
