"""One-pass learning beside other systems: each example is scored, then learned.

logs      five logs: ratings and fashion ads, which are real, the simulator's market, and two planted logs
numbers   the planted log of categories and heavy-tailed numbers
ours      our models of all defaults
compare   the rows of `livectr bench learning`

Peers' programs, each in an environment of its own:

contestants     the programs, their environments, and their scores, kept for a run
peers           Vowpal Wabbit and river (peers.txt)
vowpal          Vowpal Wabbit's text format and its pass, which `livectr bench first-rows` takes, too
neural          one pass of a network: what these two have in common
torchrec_peer   TorchRec with row-wise AdaGrad (bench/peers/packages.txt)
fuxictr_peer    FuxiCTR's DeepFM (fuxictr.txt)
refit           LightGBM, a reference that learns in batches (peers.txt)
"""


def run(quick: bool = False) -> dict[str, object]:
    """Rows of `livectr bench learning`."""
    from bench.learning.compare import measured

    return measured(quick)
