from __future__ import annotations

from callagent.errors import ProviderRefused
from callagent.failover import Lineup, Member
from callagent.observability import provider_metrics


def test_failures_open_breakers_and_outages_are_told() -> None:
    lineup = Lineup("voice", [Member("deepgram", 1), Member("azure", 2), Member("local", 3, embedded=True)])
    lineup.members[0].breaker.fail(ProviderRefused("bad key", 401), 0.0)
    lineup.outages = 2
    values = [line for line in provider_metrics([lineup]) if not line.startswith("#")]
    assert values == [
        'callagent_provider_failures_total{provider="deepgram",role="voice"} 1.0',
        'callagent_provider_failures_total{provider="azure",role="voice"} 0.0',
        'callagent_provider_resting{provider="deepgram",role="voice"} 1.0',
        'callagent_provider_resting{provider="azure",role="voice"} 0.0',
        'callagent_provider_alarm{provider="deepgram",role="voice"} 1.0',
        'callagent_provider_alarm{provider="azure",role="voice"} 0.0',
        'callagent_provider_outages_total{role="voice"} 2.0',
    ]
    assert provider_metrics([]) == []
