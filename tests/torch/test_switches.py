"""Switches of torch that a Context turns on."""

from simrank.torch.rank_state.settings import Switch


def test_setting_it_back_turns_it_off():
    """As putting back what stood there does."""
    turned = []
    switch = Switch(turned.append)
    assert not switch.is_on
    switch.is_on = True
    assert switch.is_on
    switch.is_on = False
    assert not switch.is_on
    assert turned == [True, False]
