"""A module of the user's with branches of its own."""


def is_large(loss):
    limit = 1
    return loss > limit


def reduce_if(loss, reduce):
    if loss > 1:
        reduce()
