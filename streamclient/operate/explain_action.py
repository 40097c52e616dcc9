"""What ``streamclient explain`` does."""

from __future__ import annotations

import argparse

from streamclient.errors import ConfigurationError
from streamclient.operate.collection import Collector
from streamclient.operate.documents import explanations_document
from streamclient.operate.explanation import explain
from streamclient.operate.lease_views import all_shards, named_shard, print_explanation, with_changes, with_parked
from streamclient.operate.site import Site
from streamclient.terminal.output import id_shortener, print_json, print_text
from streamclient.terminal.running import EXIT_DONE, EXIT_REFUSED


def explain_shards(site: Site, arguments: argparse.Namespace) -> int:
    """Explain one shard with the evidence, or all with a line for each."""
    if arguments.all == (arguments.shard is not None):
        raise ConfigurationError("name either a shard or --all")
    if not arguments.observe >= 0:
        raise ConfigurationError(f"--observe must be at least 0 seconds, not {arguments.observe}")
    collector = Collector(site)
    facts = collector.collect(observe_seconds=arguments.observe)
    facts = with_changes(site, with_parked(site, arguments, facts))
    shards = all_shards(facts) if arguments.all else [named_shard(facts, arguments.shard)]
    facts = collector.with_heads(facts, {key for shard in shards for key in collector.lineage_of(facts, shard)})
    verdicts = [explain(facts, shard) for shard in shards]
    if arguments.json:
        print_json(explanations_document(facts, verdicts))
    elif arguments.all:
        short = id_shortener(all_shards(facts))
        print_text(short("\n".join(each.first_line for each in verdicts)) or "no shards")
    else:
        print_explanation(facts, verdicts[0])
    return EXIT_DONE if all(each.situation.moves for each in verdicts) else EXIT_REFUSED
