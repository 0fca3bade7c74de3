from tasks.curate.families import FAMILIES
from tasks.curate.proposer import TemplateProposer
from tasks.curate.wishes import first
from tasks.curate.wishes import refined


def test_only_what_is_named_is_drawn_from() -> None:
    assert list(TemplateProposer(["logs", "basic", "csv-sum"]).levels) == ["basic", "csv-sum"]


async def test_a_wish_is_drawn_from_its_seed_and_a_refinement_from_its_own() -> None:
    proposer = TemplateProposer()
    assert proposer.levels.keys() == FAMILIES.keys()
    for wish in first(len(FAMILIES), 5, proposer.levels, 0.1):
        draft = await proposer.propose(wish, None)
        assert draft == await proposer.propose(wish, None)
        if harder := refined(wish, "harder", 1, proposer.levels, 1.0, ""):
            assert await proposer.propose(harder, None) != draft
