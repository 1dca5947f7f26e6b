"""Networks on graphs, of torch_geometric."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs
from zoo.case import healthy
from zoo.recipes import recipe

FEATURES = 24
CLASSES = 4
NODES = 120
Batch = dict[str, Tensor]


def citations(seed: int) -> Batch:
    """Papers of a few fields that cite mostly their own field; features are counts of words.

    Args:
        seed: Of the chance.
    """
    chance = torch.Generator().manual_seed(seed)
    fields = torch.randint(CLASSES, (NODES,), generator=chance)
    same = fields[:, None] == fields[None, :]
    linked = torch.rand(NODES, NODES, generator=chance) < torch.where(same, 0.12, 0.01)
    linked = (linked | linked.T) & ~torch.eye(NODES, dtype=torch.bool)
    topics = torch.rand(CLASSES, FEATURES, generator=chance) * 3
    words = torch.poisson(topics[fields], generator=chance)
    words = words / words.sum(1, keepdim=True).clamp_min(1.0)  # rows sum to 1, as usual
    return {
        "x": words,
        "edges": linked.nonzero().T.contiguous(),
        "labels": fields,
        "graph": torch.arange(NODES) // (NODES // 6),
    }


class OnNodes(nn.Module):
    """Two layers of messages and a class for each node."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first = first
        self.second = second

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        hidden = F.dropout(F.elu(self.first(x, edges)), 0.3, self.training)
        return torch.as_tensor(self.second(hidden, edges))


def of_nodes(model: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy of the nodes' classes.

    Args:
        model: Features and edges to logits.
        batch: As from `citations`.
    """
    return F.cross_entropy(model(batch["x"], batch["edges"]), batch["labels"])


def _nodes(name: str, layers: Callable[[Any], tuple[nn.Module, nn.Module]]) -> hs.Recipe:
    def model() -> nn.Module:
        import torch_geometric.nn

        return OnNodes(*layers(torch_geometric.nn))

    return recipe(name, model, of_nodes, [citations(seed) for seed in range(4)], lr=5e-3)


@healthy("torch_geometric")
def gcn() -> hs.Recipe:
    return _nodes("gcn", lambda g: (g.GCNConv(FEATURES, 64), g.GCNConv(64, CLASSES)))


@healthy("torch_geometric")
def gat() -> hs.Recipe:
    return _nodes(
        "gat", lambda g: (g.GATConv(FEATURES, 16, heads=4), g.GATConv(64, CLASSES, heads=1))
    )


@healthy("torch_geometric")
def graph_transformer() -> hs.Recipe:
    return _nodes(
        "graph_transformer",
        lambda g: (
            g.TransformerConv(FEATURES, 16, heads=4, beta=True),
            g.TransformerConv(64, CLASSES, heads=1),
        ),
    )


@healthy("torch_geometric")
def gin() -> hs.Recipe:
    """Sums over neighbours, BatchNorm, and a sum over each graph."""

    class OnGraphs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            from torch_geometric.nn import GINConv

            def mlp(width: int) -> nn.Module:
                return nn.Sequential(
                    nn.Linear(width, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64)
                )

            self.first = GINConv(mlp(FEATURES), train_eps=True)
            self.second = GINConv(mlp(64), train_eps=True)
            self.head = nn.Linear(64, CLASSES)

        def forward(self, batch: Batch) -> Tensor:
            from torch_geometric.nn import global_add_pool

            hidden = F.relu(self.first(batch["x"], batch["edges"]))
            hidden = F.relu(self.second(hidden, batch["edges"]))
            return torch.as_tensor(self.head(global_add_pool(hidden, batch["graph"])))

    def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
        graphs = int(batch["graph"].max()) + 1
        commonest = [batch["labels"][batch["graph"] == g].mode().values for g in range(graphs)]
        return F.cross_entropy(model(batch), torch.stack(commonest))

    return recipe("gin", OnGraphs, loss_fn, [citations(seed) for seed in range(4)], lr=1e-3)
