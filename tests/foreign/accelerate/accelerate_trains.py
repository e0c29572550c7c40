"""Accelerate prepares a model and gathers losses."""

import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model, optimizer = accelerator.prepare(model, optimizer)
loss = model(torch.ones(2, 4)).sum() * (accelerator.process_index + 1)
accelerator.backward(loss)
optimizer.step()
losses = accelerator.gather(loss.detach().reshape(1))
assert accelerator.num_processes == 2
torch.testing.assert_close(losses[1], 2 * losses[0])
accelerator.end_training()
