"""Lightning's Trainer with DDP, for two steps."""

import torch
import torch.distributed as dist
from lightning import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset


class Model(LightningModule):
    """One linear layer."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        loss = self.layer(batch[0]).sum()
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


if __name__ == "__main__":
    seed_everything(1)
    trainer = Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_steps=2, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    model = Model()
    trainer.fit(model, DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2))
    weights = [torch.empty_like(model.layer.weight.data) for _ in range(2)]
    dist.all_gather(weights, model.layer.weight.data)
    assert torch.equal(*weights)
    assert trainer.world_size == 2
    dist.destroy_process_group()
